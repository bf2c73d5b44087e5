package migrations

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

// with returns the good files and more.
func with(t *testing.T, more map[string]string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	err := fs.WalkDir(good, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(good, path)
		files[path] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range more {
		files[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestUpAppliesBothPartsInOrderAndThenHasNothingToDo(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	equal(t, names(b.up(m, UpOptions{})), allUp)
	equal(t, names(b.up(m, UpOptions{})), "")
	equal(t, b.one(`select string_agg(part || version || name || min_library || schema_name || length(checksum), ' ' order by part, version) from @schema@.schema_version`),
		strings.ReplaceAll("consumer1init1@64 producer1init1@64 producer2note1@64 producer3lease2@64", "@", b.schema))
	// The digest is the template's, so it is the same whatever the schema is called.
	template, err := fs.ReadFile(good, "producer/001_init.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, b.one(`select checksum from @schema@.schema_version where part = 'producer' and version = 1`), fmt.Sprintf("%x", sha256.Sum256(template)))
	equal(t, b.one(`select string_agg(distinct tableowner, ' ') from pg_tables where schemaname = '@schema_name@'`), schema.Role(b.schema, "owner"))
	equal(t, b.one(`select value from @schema@.setting where id = 1`), "seeded by "+b.schema)
	for _, kind := range schema.Kinds()[1:] {
		equal(t, b.one(`select has_table_privilege($1, '@schema@.schema_version', 'SELECT')::text`, schema.Role(b.schema, kind)), "true")
		equal(t, b.one(`select has_table_privilege($1, '@schema@.schema_version', 'INSERT,UPDATE,DELETE')::text`, schema.Role(b.schema, kind)), "false")
	}
}

func TestEveryRoleIsAGroupThatCannotLogIn(t *testing.T) {
	b := setup(t)
	b.up(b.migrator(good), UpOptions{})
	equal(t, b.one(`select count(*)::text from pg_roles where rolname like '@schema_name@\_%' and not rolcanlogin and not rolsuper and not rolcreaterole and not rolbypassrls`), "7")
}

func TestUpStopsAtTheVersionItIsTold(t *testing.T) {
	b := setup(t)
	m := b.migrator(good)
	equal(t, names(b.up(m, UpOptions{Parts: []Part{Producer}, To: 2})), "producer/001_init up, producer/002_note up")
	equal(t, names(b.up(m, UpOptions{Parts: []Part{Producer}, To: 1})), "")
	_, err := m.Up(context.Background(), UpOptions{To: 2})
	contains(t, err, "exactly one part")
	_, err = m.Up(context.Background(), UpOptions{Parts: []Part{Producer}, To: 4})
	contains(t, err, "no producer migration 4, want 1 to 3")
	_, err = m.Up(context.Background(), UpOptions{Parts: []Part{"both"}})
	contains(t, err, `unknown part "both"`)
}

func TestPartsLiveInOneSchemaOrInTwoDatabases(t *testing.T) {
	b := setup(t)
	equal(t, names(b.up(b.migrator(good), UpOptions{Parts: []Part{Producer}})), "producer/001_init up, producer/002_note up, producer/003_lease up")
	equal(t, b.one(`select coalesce(to_regclass('@schema@.guard')::text, 'none')`), "none")

	other := &bundle{t: t, dsn: pgtest.DSN(t), schema: b.schema}
	other.admin = dial(t, other.dsn, "", "")
	equal(t, names(other.up(other.migrator(good), UpOptions{Parts: []Part{Consumer}})), "consumer/001_init up")
	equal(t, other.one(`select coalesce(to_regclass('@schema@.fence')::text, 'none')`), "none")

	equal(t, names(b.up(b.migrator(good), UpOptions{})), "consumer/001_init up")
}

func TestMigratorsThatRunAtOnceApplyEachMigrationOnce(t *testing.T) {
	b := setup(t)
	const n = 4
	gate, err := b.admin.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	first := b.migrator(good)
	if _, err := gate.Exec(context.Background(), lock, first.lockKey); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var steps [n][]Step
	var errs [n]error
	for i := range n {
		m := b.migrator(good, func(c *Config) { c.LockTimeout = 20 * time.Second })
		all.Go(func() { steps[i], errs[i] = m.Up(context.Background(), UpOptions{}) })
	}
	// All of them have decided to begin before the first one may.
	b.until("all wait", `select count(*) = $1 from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`, n)
	if err := gate.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	taken := 0
	for i := range n {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		taken += len(steps[i])
	}
	if taken != 4 {
		t.Fatalf("%d steps were taken, want each of 4 once: %v", taken, steps)
	}
}

func TestADatabaseThatCreatesTheSameRolesAtTheSameTimeIsWaitedForAndAccepted(t *testing.T) {
	b := setup(t)
	// Another database's migrator, in the middle of creating roles.
	elsewhere, err := dial(t, pgtest.DSN(t), "", "").Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"owner", "relay"} {
		if _, err := elsewhere.Exec(context.Background(), "create role "+schema.Quote(schema.Role(b.schema, kind))); err != nil {
			t.Fatal(err)
		}
	}
	m := b.migrator(good, func(c *Config) { c.LockTimeout = 20 * time.Second })
	done := make(chan error, 1)
	go func() { _, err := m.Up(context.Background(), UpOptions{}); done <- err }()
	b.until("it waits for the other's role", `select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'create role%'`)
	if err := elsewhere.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAMigrationThatIsKilledBetweenItsStatementsLeavesNothingAndRunsAgain(t *testing.T) {
	b := setup(t)
	files := with(t, map[string]string{
		"producer/004_more.up.sql":   "-- min-library: 1\ncreate table @schema@.half ();\nselect pg_advisory_xact_lock(4711);\ncreate table @schema@.other_half ();\n",
		"producer/004_more.down.sql": "drop table @schema@.half, @schema@.other_half;\n",
	})
	b.exec("select pg_advisory_lock(4711)")
	m := b.migrator(files, func(c *Config) { c.LockTimeout = 20 * time.Second })
	var steps []Step
	done := make(chan error, 1)
	go func() {
		var err error
		steps, err = m.Up(context.Background(), UpOptions{Parts: []Part{Producer}})
		done <- err
	}()
	const between = `from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%half%'`
	b.until("it is between its statements", `select count(*) = 1 `+between)
	b.one(`select pg_terminate_backend(pid)::text ` + between)
	err := <-done
	contains(t, err, "producer/004_more up", "57P01")
	equal(t, names(steps), "producer/001_init up, producer/002_note up, producer/003_lease up")
	b.exec("select pg_advisory_unlock(4711)")

	b.until("the server has rolled back", `select count(*) = 0 `+between)
	equal(t, b.one(`select concat_ws(' ', to_regclass('@schema@.half'), max(version)) from @schema@.schema_version`), "3")
	equal(t, names(b.up(b.migrator(files), UpOptions{Parts: []Part{Producer}})), "producer/004_more up")
}

func TestAFailingStatementIsNamedByMigrationAndLine(t *testing.T) {
	b := setup(t)
	m := b.migrator(with(t, map[string]string{
		"producer/004_more.up.sql":   "-- min-library: 1\ncreate table @schema@.half ();\n\ncreate tabel @schema@.other ();\n",
		"producer/004_more.down.sql": "select 1;\n",
	}))
	_, err := m.Up(context.Background(), UpOptions{})
	var step *StepError
	if !errors.As(err, &step) || step.Line != 4 || step.Step.Version != 4 {
		t.Fatalf("got %v", err)
	}
	equal(t, b.one(`select coalesce(to_regclass('@schema@.half')::text, 'none')`), "none")
}

func TestAMigrationThatRefusesSaysWhatHelps(t *testing.T) {
	b := setup(t)
	m := b.migrator(with(t, map[string]string{
		"producer/004_more.up.sql":   "-- min-library: 1\nselect 1;\n",
		"producer/004_more.down.sql": "do $$ begin raise exception 'not as long as there is that' using hint = 'Remove it.'; end $$;\n",
	}))
	b.up(m, UpOptions{})
	_, err := m.Down(context.Background(), DownOptions{Part: Producer, To: 3})
	contains(t, err, "producer/004_more down", "not as long as there is that", "Remove it.")
}

func TestAnUnqualifiedNameDoesNotFindItsWayIntoSomeOtherSchema(t *testing.T) {
	b := setup(t)
	_, err := b.migrator(with(t, map[string]string{
		"producer/004_more.up.sql": "-- min-library: 1\ncreate table astray ();\n", "producer/004_more.down.sql": "select 1;\n",
	})).Up(context.Background(), UpOptions{})
	contains(t, err, "no schema has been selected")
}

func TestAnEditedFileIsRefusedWithBothChecksums(t *testing.T) {
	b := setup(t)
	b.up(b.migrator(good), UpOptions{})
	before := b.contents()
	m := b.migrator(os.DirFS("testdata/edited"))
	_, err := m.Up(context.Background(), UpOptions{})
	var changed *ChangedError
	if !errors.As(err, &changed) || changed.Migration != "producer/001_init" || changed.Applied == changed.File {
		t.Fatalf("got %v", err)
	}
	contains(t, err, changed.Applied, changed.File, "new migration")
	_, err = m.Down(context.Background(), DownOptions{Part: Producer, Force: true})
	if !errors.As(err, &changed) {
		t.Fatalf("down: got %v", err)
	}
	equal(t, b.contents(), before)
	status, err := m.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, string(status[0].Migrations[0].State+" "+status[0].Migrations[1].State), "changed applied")
}

func TestARenamedSchemaIsRefusedWithTheWayBack(t *testing.T) {
	t.Run("with its roles", func(t *testing.T) { renamedIsRefused(t, true) })
	t.Run("without its roles", func(t *testing.T) { renamedIsRefused(t, false) })
}

func renamedIsRefused(t *testing.T, roles bool) {
	b := setup(t)
	b.up(b.migrator(good), UpOptions{})
	renamed := b.schema + "_x"
	b.exec(`alter schema @schema@ rename to ` + renamed)
	// Whether the roles of the new name are there, too: the name in the functions' text is what counts.
	for _, kind := range schema.Kinds() {
		if !roles {
			break
		}
		b.exec(`alter role @` + kind + `@ rename to ` + schema.Quote(schema.Role(renamed, kind)))
	}
	old := b.schema
	b.schema = renamed
	for _, run := range []func(*Migrator) error{
		func(m *Migrator) error { _, err := m.Up(context.Background(), UpOptions{}); return err },
		func(m *Migrator) error {
			_, err := m.Down(context.Background(), DownOptions{Part: Producer, Force: true})
			return err
		},
		func(*Migrator) error { return Check(context.Background(), b.admin, renamed, Producer) },
	} {
		err := run(b.migrator(good))
		var version *VersionError
		if !errors.As(err, &version) || version.Problem != schema.Renamed || version.Under != old {
			t.Fatalf("got %v", err)
		}
		contains(t, err, `alter schema "`+renamed+`" rename to "`+old+`"`)
	}
}

func TestALockIsWaitedForUntilPatienceEndsAndThenItsHolderIsNamed(t *testing.T) {
	b := setup(t)
	b.up(b.migrator(good), UpOptions{Parts: []Part{Producer}, To: 1})
	reader, err := dial(t, b.dsn, "", "").Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(context.Background(), schema.Expand(`select from @schema@.fence`, b.schema)); err != nil {
		t.Fatal(err)
	}
	m := b.migrator(good, func(c *Config) { c.LockTimeout, c.LockPatience = 20*time.Millisecond, 100*time.Millisecond })
	_, err = m.Up(context.Background(), UpOptions{})
	var locked *LockedError
	if !errors.As(err, &locked) || len(locked.Holders) != 1 || locked.Holders[0].PID != int(reader.Conn().PgConn().PID()) {
		t.Fatalf("got %v", err)
	}
	contains(t, err, "idle in transaction", "pg_terminate_backend")
	// With more patience it gets through once the reader is done, here after a
	// second attempt has been announced.
	again := make(announcer, 1)
	patient := b.migrator(good, func(c *Config) { c.LockTimeout, c.Logger = 20*time.Millisecond, slog.New(again) })
	done := make(chan error, 1)
	go func() { _, err := patient.Up(context.Background(), UpOptions{}); done <- err }()
	select {
	case <-again:
	case err := <-done:
		t.Fatalf("gave up: %v", err)
	}
	if err := reader.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// announcer is a slog.Handler that tells of warnings.
type announcer chan struct{}

func (announcer) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (a announcer) WithAttrs([]slog.Attr) slog.Handler             { return a }
func (a announcer) WithGroup(string) slog.Handler                  { return a }
func (a announcer) Handle(context.Context, slog.Record) error {
	select {
	case a <- struct{}{}:
	default:
	}
	return nil
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	b := setup(t)
	m := b.migrator(good, func(c *Config) { c.LockTimeout, c.LockPatience = 10*time.Millisecond, time.Hour })
	b.exec("select pg_advisory_lock($1)", m.lockKey)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := m.Up(ctx, UpOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

func TestInvalidNamesAndTimesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`x";drop`, "Fenceline", "pg_x", "größe", "1a", "public", "a b", strings.Repeat("a", 41), "a\x00"} {
		// A nil DB would panic if it were used.
		_, err := New(nil, Config{Schema: name})
		var invalid *InvalidNameError
		if !errors.As(err, &invalid) || invalid.Name != name {
			t.Errorf("%q: got %v", name, err)
		}
	}
	_, err := New(nil, Config{LockTimeout: -1})
	contains(t, err, "Config.LockTimeout")
	_, err = New(nil, Config{LockPatience: -1})
	contains(t, err, "Config.LockPatience")
}

func TestAServerThatIsTooOldIsNamedWithBothVersions(t *testing.T) {
	t.Parallel()
	contains(t, &ServerError{Have: 140012, Want: oldestServer}, "PostgreSQL 14.12, want 15 or newer")
}
