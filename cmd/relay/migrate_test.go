package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestMigrateUpCanBeRunAgainAndByTwoAtOnce(t *testing.T) {
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Database(t)}
	want(t, cmdtest.Run(t, env, "relay", "migrate", "status"), 0, "producer/001_init", "consumer/001_init", "pending")
	want(t, cmdtest.Run(t, env, "relay", "migrate", "up", "-dry-run"), 0, "rolled back, nothing was changed")
	want(t, cmdtest.Run(t, env, "relay", "migrate", "status"), 0, "pending")

	one := cmdtest.Start(t, env, "relay", "migrate", "up")
	two := cmdtest.Start(t, env, "relay", "migrate", "up")
	a, b := one.Wait(t), two.Wait(t)
	want(t, a, 0)
	want(t, b, 0)
	// Each step is done by one of them.
	for _, step := range []string{"producer/001_init up", "consumer/001_init up"} {
		if n := strings.Count(a.Stdout+b.Stdout, step); n != 1 {
			t.Errorf("%q was done %d times:\n%s---\n%s", step, n, a.Stdout, b.Stdout)
		}
	}

	want(t, cmdtest.Run(t, env, "relay", "migrate", "up"), 0, "nothing to do")
	r := cmdtest.Run(t, env, "relay", "migrate", "status")
	want(t, r, 0, "applied", "postgres")
	if strings.Contains(r.Stdout, "pending") {
		t.Errorf("something is still pending:\n%s", r.Stdout)
	}
}

func TestMigrateDownRefusesToLoseRowsUnlessForced(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn}
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", "{}")

	r := cmdtest.Run(t, env, "relay", "migrate", "down", "-part", "producer")
	want(t, r, 1, "would lose data", "-force")
	want(t, cmdtest.Run(t, env, "relay", "status"), 0, "1 event")

	// The other part is not concerned.
	want(t, cmdtest.Run(t, env, "relay", "migrate", "down", "-part", "consumer"), 0, "consumer")
	want(t, cmdtest.Run(t, env, "relay", "migrate", "down", "-part", "producer", "-force"), 0, "producer")
	want(t, cmdtest.Run(t, env, "relay", "status"), 1, "schema missing")
}

func TestMigratePrintNeedsNoDatabaseAndFillsInTheSchema(t *testing.T) {
	r := cmdtest.Run(t, nil, "relay", "migrate", "print", "-part", "producer", "-schema", "other")
	want(t, r, 0, `create table "other".outbox`, `"other_relay"`)
	if strings.Contains(r.Stdout, "@schema") {
		t.Error("something is not filled in")
	}
	want(t, cmdtest.Run(t, nil, "relay", "migrate", "print", "-part", "producer", "-direction", "down"), 0, "drop table")
	want(t, cmdtest.Run(t, nil, "relay", "migrate", "print", "-part", "producer", "-version", "999"), 1, "999", "1")
}

func TestThePrintedSQLDoesWhatUpDoes(t *testing.T) {
	dsn := cmdtest.Database(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn}
	// Roles, schema and schema_version are made by up; -to leaves the rest.
	want(t, cmdtest.Run(t, env, "relay", "migrate", "up", "-part", "consumer"), 0)
	for version := range schema.Level(schema.Producer) {
		r := cmdtest.Run(t, env, "relay", "migrate", "print", "-part", "producer", "-version", strconv.Itoa(version+1))
		want(t, r, 0)
		cmdtest.Exec(t, dsn, r.Stdout)
	}
	want(t, cmdtest.Run(t, env, "relay", "migrate", "up"), 0, "nothing to do")
	want(t, cmdtest.Run(t, env, "relay", "status"), 0, "backlog  none")
}
