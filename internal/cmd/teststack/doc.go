// Teststack starts the servers that the tests need, runs a command with them, and stops them:
//
//	go run ./internal/cmd/teststack -- go test ./...
//	go run ./internal/cmd/teststack -kafka -- go test -race ./...
//
// The command finds one PostgreSQL in FENCELINE_TEST_POSTGRES (a superuser's connection string) and, with -kafka, one
// Apache Kafka in FENCELINE_TEST_KAFKA_ADDR with FENCELINE_TEST_KAFKA=apache. Its exit code is teststack's own; a
// server that can't start is exit code 1, a wrong flag 2. On Ctrl-C the command gets the signal too, and the servers
// end after it.
package main
