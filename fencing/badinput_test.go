package fencing_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

func TestAContextThatIsOverBeginsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	why := errors.New("no more")
	over, cancel := context.WithCancelCause(ctx)
	cancel(why)
	for name, f := range map[string]func() error{
		"acquire":  func() error { _, err := a.Acquire(over, "l", long); return err },
		"campaign": func() error { _, err := a.Campaign(over, "l", long); return err },
		"commit":   func() error { _, err := lease.Commit(over, content("s", "x"), write); return err },
		"batch": func() error {
			_, err := lease.CommitBatch(over, content("s", "x"), func(*fencing.Batch) error { return nil })
			return err
		},
		"commit by position": func() error { _, err := a.Commit(over, lease.Position(), content("s", "x"), write); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) && !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.ok(lease.Context().Err())
	w.wantWritten("k", written{})
	if n := value[int](w, "select count(*) from fenceline.fence"); n != 1 {
		t.Errorf("%d fences", n)
	}
	if n := a.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
	w.ok(lease.Release(over)) // as a defer does
	if until := value[bool](w, "select expires_at = '-infinity' from fenceline.lease"); !until {
		t.Error("the lease was not released")
	}
}

func TestAHandleIsOfNoUseAfterItsRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("before", "x"), write)
	w.ok(err)
	w.ok(lease.Release(ctx))
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.is(err, fencing.ErrReleased)
	_, err = lease.CommitBatch(ctx, content("s", "x"), func(*fencing.Batch) error { return nil })
	w.is(err, fencing.ErrReleased)
	_, err = lease.Rotate(ctx)
	w.is(err, fencing.ErrReleased)
	w.is(lease.HandOver(ctx, "b"), fencing.ErrReleased)
	w.ok(lease.Release(ctx))
	// But for a retry, which has an answer.
	r, err := lease.Commit(ctx, content("before", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Error("committed twice")
	}
	w.wantWritten("k", written{1, 1, 1})
	if n := a.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}

func TestAReadOnlyTransactionPassesNoGateAndMovesNoToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	pos := o.acquire("k").Position()
	for _, f := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { _, err := o.Enter(ctx, tx, pos, content("s", "x")); return err },
		func(tx pgx.Tx) error { _, err := o.Advance(ctx, tx, "l", 1); return err },
	} {
		err := pgx.BeginTxFunc(ctx, o.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, f)
		if sqlstate(err) != "25006" {
			t.Errorf("the answer is %v", err)
		}
	}
	w.wantWritten("k", written{})
}

func TestTokensThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	for token, want := range map[int64]error{0: fencing.ErrInvalid, -1: fencing.ErrInvalid, 1<<63 - 1: fencing.ErrUnconfirmable} {
		pos.Token = token
		_, err := a.commit(pos, content("s", "x"))
		w.is(err, want)
	}
	w.wantWritten("k", written{})
}

// What a pooler in transaction mode may do to the sessions: each transaction
// gets another one, or one from which all that a session can keep is removed.
// All that the protocol sets is set within its transactions.
func TestNoSessionStateIsNeeded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	discarding := func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // nor prepared statements
		c.AfterRelease = func(conn *pgx.Conn) bool {
			_, err := conn.Exec(ctx, "discard all")
			return err == nil
		}
	}
	a, b := w.workerAt("a", w.producer, 3, discarding), w.workerAt("b", w.producer, 3, discarding)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 20 * time.Second, RenewEvery: 100 * time.Millisecond})
	next := b.campaignLater(ctx, "k", fencing.LeaseConfig{TTL: time.Minute, PollEvery: 20 * time.Millisecond})
	for _, step := range []string{"1", "2", "3"} {
		_, err := lease.Commit(ctx, content(step, "x"), write)
		w.ok(err)
		_, err = lease.CommitBatch(ctx, content(step+"b", "x"), func(b *fencing.Batch) error { return b.SetResult([]byte("r")) })
		w.ok(err)
		w.rotated(lease)
	}
	from := value[time.Time](w, "select expires_at from fenceline.lease")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease", from)
	w.ok(lease.HandOver(ctx, "b"))
	successor := w.won(next)
	_, err := successor.Commit(ctx, content("4", "x"), write)
	w.ok(err)
	w.wantWritten("k", written{7, 4, 4})
	// Not even a setting is left behind, gate's timeouts included.
	conn, err := b.pool.Acquire(ctx)
	w.ok(err)
	defer conn.Release()
	var left string
	w.ok(conn.QueryRow(ctx, "select current_setting('statement_timeout') || current_setting('idle_in_transaction_session_timeout') || current_setting('lock_timeout')").Scan(&left))
	if left != "000" {
		t.Errorf("timeouts are left behind: %s", left)
	}
}

func TestAThousandLeasesOfAProcessRenewInFewStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var count counter
	a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &count })
	cfg := fencing.LeaseConfig{TTL: 24 * time.Second, RenewEvery: 4 * time.Second}
	const n = 1000
	leases := make([]*fencing.Lease, n)
	for i := range leases {
		var err error
		leases[i], err = a.Acquire(ctx, "k"+string(rune(0x4e00+i)), cfg)
		w.ok(err)
	}
	began, before := time.Now(), count.statements.Load()
	acquired := value[time.Time](w, "select max(expires_at) from fenceline.lease")
	pgtest.WaitTrue(t, w.admin, "select min(expires_at) > $1 from fenceline.lease", acquired)
	elapsed := time.Since(began).Seconds()
	if rate := float64(count.statements.Load()-before) / elapsed; rate >= 5 {
		t.Errorf("%.1f statements a second", rate)
	}
	for _, l := range leases {
		if l.Context().Err() != nil {
			t.Fatalf("%v was lost", l.Position())
		}
	}
	if n := value[int](w, "select count(*) from pg_stat_activity where usename = $1", w.loginOf(w.producer)); n > 2 {
		t.Errorf("%d connections", n)
	}
	w.exec("update fenceline.lease set expires_at = '-infinity'") // a thousand releases would take a while
}

func TestNewNamesWhatIsSetWronglyAndTheRemedy(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][2]string{
		"alter table fenceline.receipt set unlogged":                                                                                    {"table fenceline.receipt", "set logged"},
		"alter table fenceline.outbox_0 set unlogged":                                                                                   {"table fenceline.outbox_0", "set logged"},
		"alter sequence fenceline.outbox_pos set unlogged":                                                                              {"sequence fenceline.outbox_pos", "set logged"},
		"alter sequence fenceline.outbox_pos cache 20":                                                                                  {"cache of sequence fenceline.outbox_pos", "cache 1"},
		"alter table fenceline.receipt alter token type int":                                                                            {"column fenceline.receipt.token", "bigint"},
		"alter table fenceline.lease alter expires_at type timestamp":                                                                   {"column fenceline.lease.expires_at", "timestamp with time zone"},
		`alter table fenceline.head alter key type text collate "POSIX"`:                                                                {"column fenceline.head.key", `collate "C"`},
		"alter table fenceline.receipt rename committed_at to at":                                                                       {"column fenceline.receipt.committed_at", "timestamp with time zone"},
		"alter table fenceline.outbox drop column xid; alter table fenceline.outbox add xid xid8 not null default pg_current_xact_id()": {"order of the columns", "xid first"},
		`do $$ begin execute format('alter database %I set client_encoding = latin1', current_database()); end $$`:                      {"client_encoding", "set it to UTF8 for the login"},
	} {
		w := &world{TB: t, dsn: pgmigrated.Migrated(t)}
		w.admin = pgtest.Connect(t, w.dsn)
		w.exec(sql)
		pool := pgtest.Connect(t, pgmigrated.Login(t, w.dsn, schema.KindProducer))
		_, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
		var setting *fencing.SettingError
		if !errors.As(err, &setting) || !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(setting.Name, want[0]) || !strings.Contains(setting.Remedy, want[1]) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	w := &world{TB: t, dsn: pgmigrated.Migrated(t)}
	pool := pgtest.Connect(t, pgmigrated.Login(t, w.dsn, schema.KindProducer))
	if _, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true}); err != nil {
		t.Errorf("as the migrations made it: %v", err)
	}
}

func TestNewRefusesADatabaseWhoseEncodingLacksKeys(t *testing.T) {
	t.Parallel()
	admin := pgtest.Pool(t)
	for encoding, refused := range map[string]bool{"LATIN1": true, "SQL_ASCII": false} {
		name := strings.ToLower(admin.Config().ConnConfig.Database + "_" + encoding)
		create := "create database " + pgx.Identifier{name}.Sanitize() + " template template0 locale 'C' encoding '" + encoding + "'"
		if _, err := admin.Exec(ctx, create); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := admin.Exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" (force)"); err != nil {
				t.Error(err)
			}
		})
		cfg := admin.Config()
		cfg.ConnConfig.Database = name
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		m, err := migrations.New(pool, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Up(ctx, migrations.UpOptions{Parts: []migrations.Part{migrations.Producer}}); err != nil {
			t.Fatal(err)
		}
		_, err = fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
		var setting *fencing.SettingError
		switch {
		case !refused && err != nil:
			t.Errorf("%s: %v", encoding, err)
		case refused && (!errors.As(err, &setting) || setting.Name != "the database encoding" || setting.Have != encoding):
			t.Errorf("%s: %v", encoding, err)
		}
	}
}
