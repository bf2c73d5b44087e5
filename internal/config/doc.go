// Package config reads the settings of the commands: each is a flag and an
// environment variable, secrets also a file named by a variable that ends in
// _FILE. A flag wins over the variable, the variable over the file, the file
// over the default. All that is wrong is reported at once, each with what to
// do about it; a secret's value never is.
package config
