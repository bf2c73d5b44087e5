package fencing_test

import (
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

// newServerWorld is a world on a server of its own, whose settings may change.
func newServerWorld(t *testing.T) *world {
	t.Helper()
	return newServerWorldWith(t, devstack.PostgresConfig{})
}

func newServerWorldWith(t *testing.T, cfg devstack.PostgresConfig) *world {
	t.Helper()
	server := pgtest.Server(t, cfg)
	u, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery += "&synchronous_commit=local" // the superuser waits for no standby
	w := &world{TB: t, dsn: u.String(), server: server}
	w.admin = pgtest.Connect(t, w.dsn)
	migrator, err := migrations.New(w.session(w.dsn), migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	w.ok(err)
	_, err = migrator.Up(ctx, migrations.UpOptions{})
	w.ok(err)
	login, err := url.Parse(pgmigrated.Login(w, w.dsn, schema.KindProducer))
	w.ok(err)
	login.RawQuery = "sslmode=disable"
	w.producer = login.String()
	w.exec("create table public.result (key text, note text); grant all on public.result to public; grant create on schema public to public")
	return w
}

// waitForStandbys returns when commits wait for a standby that never comes. That
// they do is said by the checkpointer, some time after the setting is read; until
// then they don't.
func (w *world) waitForStandbys() {
	w.Helper()
	probe := w.session(w.dsn)
	pid := int32(probe.PgConn().PID())
	deadline := time.Now().Add(time.Minute)
	for {
		done := make(chan error, 1)
		go func() {
			_, err := probe.Exec(ctx, "begin; set local synchronous_commit = on; select pg_logical_emit_message(true, 'probe', ''); commit")
			done <- err
		}()
		for waits := false; ; {
			select {
			case err := <-done:
				w.ok(err)
			default:
				if waits = value[bool](w, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')", pid); waits {
					w.exec("select pg_cancel_backend($1)", pid)
					if err := <-done; err != nil { // a warning is no error
						w.Logf("the probe: %v", err)
					}
					return
				}
				continue
			}
			break
		}
		if time.Now().After(deadline) {
			w.Fatal("commits don't wait for a standby")
		}
	}
}

func TestACommitThatIsNotReplicatedIsSaidToBeCommittedAndNotReplicated(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	lease := a.acquire("k")
	// A standby that never comes.
	w.exec("alter system set synchronous_standby_names = 'nobody'")
	w.exec("select pg_reload_conf()")
	w.waitForStandbys()
	pid := a.pid()
	waits := "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')"
	commit := a.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitTrue(t, w.admin, waits, int32(pid))
	w.exec("select pg_cancel_backend($1)", int32(pid))
	got := <-commit
	w.is(got.err, fencing.ErrNotReplicated)
	if got.receipt.Position != lease.Position() || got.receipt.CommittedAt.IsZero() {
		t.Errorf("receipt %+v", got.receipt)
	}
	w.wantWritten("k", written{1, 1, 1})

	// A session that is ended meanwhile says nothing about its commit.
	commit = a.commitLater(lease.Position(), content("s2", "x"))
	pgtest.WaitTrue(t, w.admin, waits, int32(pid))
	w.exec("select pg_terminate_backend($1)", int32(pid))
	w.is((<-commit).err, fencing.ErrUnknownOutcome)

	// Nor does a receipt that is visible: its commit may be on the primary alone.
	waiting := "select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep')"
	commit = a.commitLater(lease.Position(), content("s2", "x"))
	pgtest.WaitTrue(t, w.admin, waiting)
	w.exec("select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'")
	got = <-commit
	w.is(got.err, fencing.ErrNotReplicated)
	if !got.receipt.Replayed {
		t.Errorf("receipt %+v", got.receipt)
	}
	w.exec("alter system reset synchronous_standby_names")
	w.exec("select pg_reload_conf()")
	r, err := a.commit(lease.Position(), content("s2", "x"))
	w.ok(err)
	if !r.Replayed {
		t.Error("the retry committed a second time")
	}
	w.wantWritten("k", written{2, 2, 2})
}

func TestAWarningOfATriggerIsNotTakenForThatOfTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`create function public.warn() returns trigger language plpgsql as $$ begin raise warning 'beware'; return null; end $$;
		create constraint trigger warn after insert on public.result deferrable initially deferred for each row execute function public.warn()`)
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
}
