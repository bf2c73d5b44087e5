// Package cmdtest runs the programs of cmd/ as a user does: built, in a process
// of their own, told by flags and environment variables, judged by what they
// print and by their exit code.
//
// [Run] runs one to its end, [Start] leaves it running, [Process.Terminate]
// asks it to end as a supervisor would. A program sees none of the test's own
// FENCELINE_ variables.
//
// [Database] is an empty database on a server that keeps what it acknowledges:
// the programs refuse one that doesn't, which the shared server of package
// pgtest is.
package cmdtest
