package migrations

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
)

func TestADryRunSaysWhatWouldBeDoneAndChangesNothing(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	before := b.contents()
	equal(t, names(b.up(m, UpOptions{DryRun: true})), allUp)
	equal(t, b.contents(), before)

	b.up(m, UpOptions{})
	before = b.contents()
	equal(t, names(b.down(m, DownOptions{Part: Producer, DryRun: true})), allDown)
	equal(t, b.contents(), before)
	equal(t, names(b.up(m, UpOptions{DryRun: true})), "")

	b.exec(`insert into @schema@.fence values ('a', 1)`)
	_, err := m.Down(context.Background(), DownOptions{Part: Producer, DryRun: true})
	contains(t, err, "would lose data")
	equal(t, names(b.down(m, DownOptions{Part: Producer, DryRun: true, Force: true})), allDown)
	equal(t, b.one(`select count(*)::text from @schema@.fence`), "1")
}

func TestADryRunFindsTheStatementThatWouldFail(t *testing.T) {
	b := setup(t)
	m := b.migrator(with(t, map[string]string{
		"producer/004_more.up.sql": "-- min-library: 1\nselect 1/0;\n", "producer/004_more.down.sql": "select 1;\n",
	}))
	before := b.contents()
	_, err := m.Up(context.Background(), UpOptions{DryRun: true})
	contains(t, err, "producer/004_more up", "division by zero")
	equal(t, b.contents(), before)
}

func TestStatusTellsAppliedFromPendingAndByWhom(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	status, err := m.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(status) != 2 || status[0].Have != 0 || status[0].Want != 3 || status[1].Want != 1 || status[0].Migrations[2].State != StatePending {
		t.Fatalf("before: %+v", status)
	}
	b.up(m, UpOptions{Parts: []Part{Producer}, To: 2})
	if status, err = m.Status(context.Background()); err != nil {
		t.Fatal(err)
	}
	first, third := status[0].Migrations[0], status[0].Migrations[2]
	if status[0].Have != 2 || first.State != StateApplied || first.By != b.one("select session_user") || first.At.IsZero() || third.State != StatePending || third.By != "" {
		t.Fatalf("after: %+v", status)
	}
}

func TestStatusIsForAnyMemberOfOurRolesAndTellsOthersWhichRoleTheyLack(t *testing.T) {
	b := setup(t)
	b.up(b.migrator(good), UpOptions{})
	login := b.login("nosuperuser")
	m := b.migratorOn(login.conn, good)
	_, err := m.Status(context.Background())
	contains(t, err, `grant "`+schema.Role(b.schema, "monitor")+`" to "`+login.name+`";`)
	err = Check(context.Background(), login.conn, b.schema, Producer)
	contains(t, err, "may not read it", `grant "`+schema.Role(b.schema, "producer")+`" to "`+login.name+`"`)

	b.exec(`grant @monitor@ to ` + login.name)
	status, err := m.Status(context.Background())
	if err != nil || status[0].Have != 3 {
		t.Fatal(status, err)
	}
}

func TestPrintedScriptsDoWhatUpAndDownDo(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	run := func(part Part, version int, direction Direction) error {
		var script bytes.Buffer
		if err := m.Print(&script, part, version, direction); err != nil {
			return err
		}
		// On a connection of its own, since a failed script leaves its
		// transaction open, as it would in another tool.
		_, err := dial(t, b.dsn, "", "").Exec(context.Background(), script.String())
		return err
	}
	for _, version := range []int{1, 2, 3} {
		if err := run(Producer, version, Up); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(Consumer, 1, Up); err != nil {
		t.Fatal(err)
	}
	printed := b.contents()
	equal(t, names(b.up(m, UpOptions{})), "")
	contains(t, run(Producer, 3, Up), "at version 2")
	if err := run(Producer, 3, Down); err != nil {
		t.Fatal(err)
	}
	contains(t, run(Producer, 3, Down), "at version 3")
	equal(t, names(b.up(m, UpOptions{})), "producer/003_lease up")

	b.down(m, DownOptions{Part: Producer, Force: true})
	b.down(m, DownOptions{Part: Consumer, Force: true})
	b.up(m, UpOptions{})
	equal(t, b.contents(), printed)

	// Nor do they depend on what the login begins transactions with.
	l := b.login("superuser")
	for _, setting := range []string{"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "statement_timeout = '1min'"} {
		b.exec(`alter role ` + l.name + ` set ` + setting)
	}
	for _, direction := range []Direction{Down, Up} {
		var script bytes.Buffer
		if err := m.Print(&script, Producer, 3, direction); err != nil {
			t.Fatal(err)
		}
		seen := "select pg_catalog.concat_ws(' ', pg_catalog.current_setting('transaction_isolation'), pg_catalog.current_setting('statement_timeout'))"
		look := strings.Replace(script.String(), "\ncommit;", "\nselect 1 / ("+seen+" = 'read committed 0')::int;\ncommit;", 1)
		if _, err := dial(t, b.dsn, l.name, "secret").Exec(context.Background(), look); err != nil {
			t.Errorf("%s: %v", direction, err)
		}
	}

	contains(t, m.Print(&bytes.Buffer{}, Producer, 4, Up), "no producer migration 4")
	contains(t, m.Print(&bytes.Buffer{}, Producer, 1, "sideways"), `unknown direction "sideways"`)
}
