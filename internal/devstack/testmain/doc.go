// Package testmain ends the servers that the tests of one package share, after the last test.
//
// Packages pgtest and kafkatest start a server when a test first asks for it and register its end here, so one Main
// serves a package that uses both:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
//
// A package without a TestMain leaves no server behind either: a watchdog ends them when the test process exits. Main
// ends them in order and says so when one of them misbehaved.
package testmain
