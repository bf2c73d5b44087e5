// Command bench measures fenceline against what people would otherwise pick, on
// a real PostgreSQL and a real Apache Kafka that it starts itself.
//
//	go run . -quick
//
// It is a module of its own, so that the peers are no dependencies of whoever
// uses fenceline.
//
// # How it measures
//
// The arms of a section take turns, round after round, since a shared machine
// is faster now and slower then: a round's ratio divides two arms of that round,
// and what is printed is the median over the rounds, with the smallest and the
// largest. Each arm is a process of its own, so that its processor time and its
// memory are its own, too; those of PostgreSQL and Kafka are read beside them.
// Loading, connecting and warming up are not part of the time.
//
// Every arm's output is read back from Kafka and checked: nothing lost, and the
// events of each key in order. An arm that fails is shown with what it lost or
// inverted, and its speed is struck out: to be fast at something else is no
// achievement.
package main
