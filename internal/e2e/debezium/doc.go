// Package debezium tries our outbox under the real Debezium: a PostgreSQL, an
// Apache Kafka, and a Kafka Connect worker with the configuration that
// docs/debezium holds, byte for byte. What its consumer applies is compared with
// what the producers committed.
//
// Its tests need Java and Maven and take minutes, so they are behind the build
// tag debezium: "make test-debezium" runs them.
package debezium
