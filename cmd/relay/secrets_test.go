package main

import (
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
)

// The connection string and the Kafka password are in the environment of every
// command, and none of them prints either, whatever fails.
func TestNoCommandPrintsASecret(t *testing.T) {
	addr := nobody(t)
	for _, dsn := range []string{
		"postgres://u:" + secret + "@" + addr + "/db?connect_timeout=2",
		"host=127.0.0.1 port=1 user=u password=" + secret + " connect_timeout=2",
		"postgres://u:" + secret + "@" + addr + "/db?sslmode=verify-full&connect_timeout=2",
	} {
		env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + addr, "FENCELINE_KAFKA_PASSWORD=" + secret, "FENCELINE_KAFKA_USER=u",
			"FENCELINE_KAFKA_SASL=scram-sha-256", "FENCELINE_LOG_LEVEL=debug", "FENCELINE_HTTP=off"}
		for _, command := range []string{"run", "status", "doctor", "pause", "resume", "retention", "sweep", "held list", "topic list"} {
			want(t, cmdtest.Run(t, env, "relay", strings.Fields(command)...), 1)
		}
	}
	// A mistake in the settings is told without them, too.
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + secret, "FENCELINE_KAFKA_PASSWORD=" + secret}, "relay", "doctor"), 2, "is not a connection string")
}
