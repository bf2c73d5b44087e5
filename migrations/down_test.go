package migrations

import (
	"context"
	"errors"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

const allDown = "producer/003_lease down, producer/002_note down, producer/001_init down"

func (b *bundle) down(m *Migrator, options DownOptions) []Step {
	b.t.Helper()
	steps, err := m.Down(context.Background(), options)
	if err != nil {
		b.t.Fatal(err)
	}
	return steps
}

func TestDownUndoesWhatHoldsNoDataSeededRowsExceptedAndThenTheSchema(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	b.up(m, UpOptions{})
	equal(t, names(b.down(m, DownOptions{Part: Producer, To: 2})), "producer/003_lease down")
	equal(t, names(b.down(m, DownOptions{Part: Producer})), "producer/002_note down, producer/001_init down")
	equal(t, b.one(`select to_regclass('@schema@.guard')::text`), b.schema+".guard") // the other part doesn't notice
	equal(t, names(b.down(m, DownOptions{Part: Consumer})), "consumer/001_init down")
	equal(t, b.one(`select count(*)::text from pg_namespace where nspname = '@schema_name@'`), "0")
	equal(t, b.one(`select count(*)::text from pg_roles where rolname like '@schema_name@\_%'`), "7") // roles stay
	equal(t, names(b.down(m, DownOptions{Part: Producer})), "")
	equal(t, names(b.up(m, UpOptions{})), allUp)
}

func TestDownRefusesToLoseRowsAndLeavesEverythingUnlessForced(t *testing.T) {
	for name, c := range map[string]struct {
		insert, table, column string
		rows                  int64
	}{
		"a row":                  {`insert into @schema@.fence values ('a', 1), ('b', 1)`, "fence", "", 2},
		"a row of a partition":   {`insert into @schema@.event values (7, '')`, "event", "", 1},
		"a row beside the seeds": {`insert into @schema@.setting values (3, null)`, "setting", "", 1},
		"a seed that was edited": {`update @schema@.setting set value = 'edited' where id = 1`, "setting", "", 1},
		"a value in a column":    {`insert into @schema@.fence values ('a', 1, 'note'), ('b', 1, null)`, "fence", "note", 1},
		"a row of the last step": {`insert into @schema@.lease values ('a')`, "lease", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			m := b.migrator(good)
			b.up(m, UpOptions{})
			b.exec(c.insert)
			before := b.contents()
			_, err := m.Down(context.Background(), DownOptions{Part: Producer})
			var loss *DataLossError
			if !errors.As(err, &loss) || len(loss.Losses) != 1 {
				t.Fatalf("got %v", err)
			}
			want := Loss{Table: schema.Quote(b.schema) + "." + schema.Quote(c.table), Column: c.column, Rows: c.rows}
			if loss.Losses[0] != want {
				t.Fatalf("got %+v, want %+v", loss.Losses[0], want)
			}
			contains(t, err, want.Table, "nothing was changed", "force")
			equal(t, b.contents(), before) // also the steps above the one that was refused
			equal(t, names(b.down(m, DownOptions{Part: Producer, Force: true})), allDown)
		})
	}
}

func TestARowThatIsCommittedWhileDownCountsIsNotLost(t *testing.T) {
	b := setup(t)
	m := b.migrator(good, func(c *Config) { c.LockTimeout = 1 << 34 })
	b.up(m, UpOptions{})
	// A writer who has a lock on the table but hasn't committed yet: Down must
	// wait for it and then see its row.
	writer, err := dial(t, b.dsn, "", "").Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(context.Background(), schema.Expand(`insert into @schema@.lease values ('late')`, b.schema)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := m.Down(context.Background(), DownOptions{Part: Producer, To: 2}); done <- err }()
	b.until("it waits for the writer", `select count(*) > 0 from pg_locks where not granted and relation = '@schema@.lease'::regclass`)
	if err := writer.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	var loss *DataLossError
	if err := <-done; !errors.As(err, &loss) {
		t.Fatalf("got %v", err)
	}
}

func TestTablesThatAreCountedAreLocked(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	b.up(m, UpOptions{})
	err := m.inTx(context.Background(), "test", func(tx pgx.Tx) error {
		if err := m.prepare(context.Background(), tx); err != nil {
			return err
		}
		last := m.migrated[Producer][2]
		if _, err := m.losses(context.Background(), tx, Step{Producer, 3, last.Name, Down}, last); err != nil {
			return err
		}
		// Between the count and the drop nobody can write.
		equal(t, b.one(`select string_agg(mode, ' ') from pg_locks where granted and relation = '@schema@.lease'::regclass and mode = 'AccessExclusiveLock'`), "AccessExclusiveLock")
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		t.Fatal(err)
	}
}

func TestDownLeavesASchemaThatSomebodyElseUses(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	b.up(m, UpOptions{Parts: []Part{Consumer}})
	b.exec(`create table @schema@.guest ()`)
	equal(t, names(b.down(m, DownOptions{Part: Consumer})), "consumer/001_init down")
	equal(t, b.one(`select string_agg(relname, ' ') from pg_class where relnamespace = '@schema@'::regnamespace`), "guest")
}

func TestDownRefusesWhatANewerLibraryApplied(t *testing.T) {
	b := setup(t)
	b.up(b.migrator(with(t, map[string]string{
		"producer/004_more.up.sql": "-- min-library: 1\nselect 1;\n", "producer/004_more.down.sql": "select 1;\n",
	})), UpOptions{})
	m := b.migrator(good)
	_, err := m.Down(context.Background(), DownOptions{Part: Producer, Force: true})
	var version *VersionError
	if !errors.As(err, &version) || version.Problem != schema.LibraryTooOld || version.Have != 3 || version.Want != 4 {
		t.Fatalf("got %v", err)
	}
	equal(t, names(b.up(m, UpOptions{})), "") // but up has nothing against it
	status, err := m.Status(context.Background(), Producer)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, string(status[0].Migrations[3].State), "newer")
}

func TestDownRefusesVersionsAndPartsThatAreNotThere(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	for _, options := range []DownOptions{{Part: Producer, To: 4}, {Part: Producer, To: -1}, {}} {
		if _, err := m.Down(context.Background(), options); err == nil {
			t.Errorf("%+v was accepted", options)
		}
	}
}
