package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
)

// onDatabase are the commands that ask the database, with what they need to get that
// far.
var onDatabase = map[string]string{
	"run": "", "status": "", "doctor": "", "pause": "", "resume": "", "retention": "", "sweep": "", "verify": "", "protected": "", "republish": "-key k",
	"migrate up": "", "migrate down": "-part producer", "migrate status": "",
	"held list": "", "held show": "-topic t -key k", "held retry": "-topic t -key k", "held skip": "-topic t -key k",
	"topic list": "", "topic retire": "t", "topic accept": "-partitions 1 -drained t",
	"protect": "-table t -column c", "unprotect": "-table t",
	"lease list": "", "lease show": "k", "lease expire": "k", "lease own": "-login l k",
	"history show": "", "history bump": "", "history confirm": "", "history policy": "-on-new bump",
	"inbox parked list": "-consumer c", "inbox parked show": ofStream, "inbox parked retry": ofStream + why, "inbox parked discard": ofStream + why + " -epoch 1 -seq 1",
	"inbox parked adopt": ofStream + why + " -epoch 1 -seq 1", "inbox parked erase": ofStream + why + " -epoch 1 -seq 1",
	"inbox dead list": "-consumer c", "inbox dead show": ofStream + " -epoch 1 -seq 1", "inbox dead retry": ofStream + why + " -epoch 1 -seq 1",
	"inbox dead discard": ofStream + why + " -epoch 1 -seq 1", "inbox dead erase": ofStream + why + " -epoch 1 -seq 1",
	"inbox quarantine list": "-consumer c", "inbox quarantine show": "-consumer c -id 1", "inbox quarantine retry": "-consumer c -id 1" + why,
	"inbox quarantine admit": "-consumer c -id 1" + why, "inbox quarantine discard": "-consumer c -id 1" + why, "inbox quarantine erase": "-consumer c -id 1" + why,
	"inbox partition list": "-consumer c", "inbox partition accept": "-consumer c -topic t -partition 0" + why,
	"inbox topic accept": "-consumer c -topic t -partitions 1 -ends 0=1" + why, "inbox audit": "-consumer c",
}

const (
	ofStream = "-consumer c -stream s -key k"
	why      = " -why w"
)

// The list above is complete.
func TestEachCommandThatAsksTheDatabaseIsTriedForSecrets(t *testing.T) {
	for _, c := range commands() {
		var help bytes.Buffer
		_ = c.Run(context.Background(), []string{"-help"}, &help, &help)
		if _, listed := onDatabase[c.Name]; listed != slices.Contains(strings.Fields(help.String()), "-postgres") {
			t.Errorf("relay %s: listed %t, has -postgres %t", c.Name, listed, !listed)
		}
	}
}

// The connection string and the Kafka password are in the environment of every
// command, and none of them prints either, whatever fails.
func TestNoCommandPrintsASecret(t *testing.T) {
	addr := nobody(t)
	for i, dsn := range []string{
		"postgres://u:" + secret + "@" + addr + "/db?connect_timeout=2",
		"host=127.0.0.1 port=1 user=u password=" + secret + " connect_timeout=2",
		"postgres://u:" + secret + "@" + addr + "/db?sslmode=verify-full&connect_timeout=2",
	} {
		env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + addr, "FENCELINE_KAFKA_PASSWORD=" + secret, "FENCELINE_KAFKA_USER=u",
			"FENCELINE_KAFKA_SASL=scram-sha-256", "FENCELINE_LOG_LEVEL=debug", "FENCELINE_HTTP=off"}
		for _, command := range []string{"run", "status", "doctor"} {
			want(t, cmdtest.Run(t, env, "relay", strings.Fields(command)...), 1)
		}
		if i > 0 {
			continue
		}
		for command, args := range onDatabase {
			t.Run(command, func(t *testing.T) {
				want(t, cmdtest.Run(t, env, "relay", strings.Fields(command+" "+args)...), 1, addr)
			})
		}
	}
	// A mistake in the settings is told without them, too.
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + secret, "FENCELINE_KAFKA_PASSWORD=" + secret}, "relay", "doctor"), 2, "is not a connection string")
}
