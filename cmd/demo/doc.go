// Demo shows the whole story in one command: workers with leases commit real
// earthquake reports, a relay publishes them, a downstream service counts them;
// and one after the other, everything that usually goes wrong does go wrong.
//
//	demo                  the story, on an embedded PostgreSQL and an in-process broker
//	demo -keep            the same, and the servers stay until Ctrl-C
//	demo -postgres … -kafka …   the same on servers that exist, in a schema, a topic and a group of its own
//	demo produce          a producer for an installation that is up already
//	demo version
//
// It ends with a check of facts: what the input file says, against what
// PostgreSQL, Kafka and the downstream tables say. Exit code 0 and a last line
// "demo: PASS …", or 1 and "demo: FAIL …" with what differs.
//
// Where to read: story.go is the story, worker.go a producer as a user would
// write it, check.go the facts. Workers, relay and consumer are processes of
// their own (child.go): they are stopped with SIGSTOP and killed with SIGKILL,
// not simulated.
package main
