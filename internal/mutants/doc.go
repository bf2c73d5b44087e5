// Package mutants shows that tests need the rules that they are about: it builds
// the package that is being tested with one rule taken out, and wants a named test
// to fail then. What no test misses is not known to be needed.
//
// A mutant is a text in a file that is replaced by another; the file on disk stays
// as it is. [Check] is quick, and belongs into each run: a mutant whose text is
// gone would catch nothing. [Run] builds the package anew for each of them.
package mutants
