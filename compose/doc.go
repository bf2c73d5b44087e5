// Package compose holds the container set-up of the whole chain, and the tests
// that keep it in step with the programs.
//
// A compose file is a program in a language without a compiler: a flag that was
// renamed, a dependency on a health check that isn't there or a port that is open
// to the network shows when somebody starts it. The tests load the file with the
// reference implementation of the format, check the rules of the house on the
// result, and ask the built programs for their help to see that each command,
// flag and FENCELINE_ variable that the file uses exists.
package compose
