// Package kafkaconnect runs a Kafka Connect worker with Debezium's PostgreSQL
// connector, for the life of this process: to try our tables under it, and to
// measure it beside our relay.
//
// It needs Java 17 or newer and Maven: the jars are fetched by Maven once into
// devstack's cache, from the two pom.xml in this folder.
//
// The worker is of the standalone kind, with its offsets in a file. It keeps
// that file over [Worker.Kill] and [Worker.Restart], and it ends, with what it
// has, when this process dies in whatever way. It listens on 127.0.0.1 only.
package kafkaconnect
