package fencing_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// partitioned is a table with a partition that is partitioned again, all
// writable by everybody.
func (w *world) partitioned() {
	w.exec(`create table public.part (key text not null, day int not null, note text, primary key (key, day)) partition by range (day)`)
	w.exec("create table public.part_1 partition of public.part for values from (0) to (10)")
	w.exec("create table public.part_2 partition of public.part for values from (10) to (20) partition by list (key)")
	w.exec("create table public.part_2k partition of public.part_2 for values in ('k')")
	w.exec("create table public.part_2x partition of public.part_2 default")
	w.exec("insert into public.part values ('k', 1, 'before'), ('l', 1, 'before'), ('k', 11, 'before'), ('l', 11, 'before')")
	w.exec("grant all on all tables in schema public to public")
}

func TestAPartitionedTableIsProtectedAlsoWhereALeafIsWrittenDirectly(t *testing.T) {
	t.Parallel()
	leavesAreProtected(newWorld(t))
}

func leavesAreProtected(w *world) {
	w.partitioned()
	w.protect("key", "part")
	for _, conn := range []*pgx.Conn{w.session(w.dsn), w.stranger()} {
		for _, table := range []string{"part", "part_1", "part_2", "part_2k", "part_2x"} {
			day, key := 2, "k"
			if strings.Contains(table, "2") {
				day = 12
			}
			if table == "part_2x" {
				key = "l"
			}
			for _, sql := range []string{
				fmt.Sprintf("insert into public.%s values ('%s', %d, 'x')", table, key, day),
				fmt.Sprintf("update public.%s set note = 'x'", table), fmt.Sprintf("delete from public.%s", table), fmt.Sprintf("truncate public.%s", table),
			} {
				w.refusedWrite(conn, sql)
			}
			if _, err := conn.CopyFrom(ctx, pgx.Identifier{"public", table}, []string{"key", "day", "note"}, pgx.CopyFromRows([][]any{{key, day, "x"}})); sqlstate(err) != "FL007" {
				w.Errorf("COPY into %s: %v", table, err)
			}
		}
	}
	a := w.worker("a")
	w.ok(w.behindGate(a, "k", "insert into public.part values ('k', 2, 'new')", "insert into public.part_2k values ('k', 12, 'new')",
		"update public.part set day = 13 where key = 'k' and day = 2")) // from leaf to leaf
	for _, sql := range []string{
		"insert into public.part_1 values ('l', 2, 'x')", "update public.part set day = day + 1 where key = 'l'",
		"update public.part set key = 'l', day = 19 where key = 'k' and day = 1", // to another leaf and another key
		"update public.part set key = 'k', day = 19 where key = 'l' and day = 1",
	} {
		if err := w.behindGate(a, "k", sql); sqlstate(err) != "FL007" {
			w.Errorf("%s: %v, want FL007", sql, err)
		}
	}
	if got := w.rows("public.part"); got != "k=before k=before k=new k=new l=before l=before" {
		w.Errorf("the table has %s", got)
	}
}

func TestAPartitionThatIsAttachedLaterIsProtectedWithTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.session(pgmigrated.Login(t, w.dsn, schema.KindProducer))
	exec := func(sql string) {
		t.Helper()
		_, err := owner.Exec(ctx, sql)
		w.ok(err)
	}
	exec("create table public.part (day int, key text, note text) partition by range (day); grant all on public.part to public")
	w.ok(fencing.Protect(ctx, owner, "", pgx.Identifier{"part"}, "key"))
	exec("create table public.part_1 partition of public.part for values from (0) to (10)")
	exec("create table public.part_2 (note text, key text, day int)") // its columns are in another order
	exec("insert into public.part_2 values ('before', 'k', 11)")
	exec("alter table public.part attach partition public.part_2 for values from (10) to (20)")
	exec("grant all on public.part_1, public.part_2 to public")
	conn := w.stranger()
	for _, table := range []string{"part_1", "part_2"} {
		for _, sql := range []string{"insert into public.%s (key, day) values ('k', 5)", "insert into public.%s (key, day) values ('k', 15)", "update public.%s set note = 'x'", "delete from public.%s"} {
			if table == "part_1" && !strings.Contains(sql, "5)") || strings.Contains(sql, "15") != (table == "part_2") && strings.Contains(sql, "insert") {
				continue
			}
			if pg := w.refusedWrite(conn, fmt.Sprintf(sql, table)); !strings.Contains(pg.Message, "'k'") {
				t.Errorf("%s on %s: the error does not name the key: %s", sql, table, pg.Message)
			}
		}
	}
	w.ok(w.behindGate(w.worker("a"), "k", "insert into public.part_2 values ('mine', 'k', 12)"))

	// TRUNCATE has only statement triggers, which are not cloned: the list says
	// so until Protect has run again.
	gaps := func() string {
		t.Helper()
		list, err := fencing.Protected(ctx, owner, "")
		w.ok(err)
		if len(list) != 1 {
			t.Fatalf("%+v", list)
		}
		return strings.Join(list[0].Gaps, ", ")
	}
	if got := gaps(); got != "truncate of public.part_1, truncate of public.part_2" {
		t.Errorf("open: %s", got)
	}
	w.refusedWrite(conn, "truncate public.part")
	w.ok(fencing.Protect(ctx, owner, "", pgx.Identifier{"part"}, "key"))
	w.refusedWrite(conn, "truncate public.part_2")
	if got := gaps(); got != "" {
		t.Errorf("open: %s", got)
	}
	exec("alter table public.part_2 disable trigger fenceline_gate_delete")
	if got := gaps(); got != "delete of public.part_2" {
		t.Errorf("open: %s", got)
	}

	// A partition has its protection from its table.
	for _, err := range []error{fencing.Protect(ctx, owner, "", pgx.Identifier{"part_1"}, "key"), second(fencing.Unprotect(ctx, owner, "", pgx.Identifier{"part_1"}))} {
		if err == nil || !strings.Contains(err.Error(), "partition") {
			t.Errorf("on a partition: %v", err)
		}
	}
	was, err := fencing.Unprotect(ctx, owner, "", pgx.Identifier{"part"})
	w.ok(err)
	if !was {
		t.Error("it was protected")
	}
	if got := sqlstateOf(conn, "insert into public.part values (1, 'k', 'x'); truncate public.part_1; truncate public.part"); got != "ok" {
		t.Errorf("unprotected: %s", got)
	}
}

func second[T any](_ T, err error) error { return err }
