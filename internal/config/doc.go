// Package config reads the settings of the commands: each is a flag, those of an
// installation also an environment variable, and secrets a file named by a variable
// that ends in _FILE. A flag wins over the variable, the variable over the file, the
// file over the default. All that is wrong is reported at once, each with what to
// do about it; a secret's value never is, nor another's that looks like one.
package config
