// Command testlog reads what "go test -json" writes and prints what a person
// wants of it: go test's closing line of each package, the whole output of tests
// that failed, and each test that was skipped, with its reason.
//
// A skipped test is one that promises something and doesn't show it. So testlog
// exits with 1 if a test was skipped whose reason isn't matched by -allow, and if
// no test ran at all, besides when one failed. Lines that aren't go test's are
// passed on.
package main
