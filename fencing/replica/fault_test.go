package replica_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestAReadThatReplayCancelsIsRepeatedOnThePrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(map[string]string{"max_standby_streaming_delay": "0"})
	reader := w.reader(standby)
	w.exec("insert into report select n::text, 'x' from generate_series(1, 100) n")
	position := w.report(w.takeOver("k"), "new")
	w.ok(standby.CatchUp(ctx))
	var runs []string
	var rows int
	result, err := reader.Read(ctx, position, replica.WaitThenPrimary(10*time.Second), func(ctx context.Context, tx pgx.Tx) error {
		var recovery bool
		if err := tx.QueryRow(ctx, "select count(*), pg_is_in_recovery() from report").Scan(&rows, &recovery); err != nil {
			return err
		}
		if !recovery {
			runs = append(runs, "primary")
			return nil
		}
		runs = append(runs, "replica")
		// What this transaction sees is removed on the primary, and replay doesn't
		// wait for it.
		w.exec("delete from report where key <> 'k'")
		w.exec("vacuum report")
		for ctx.Err() == nil {
			if _, err := tx.Exec(ctx, "select pg_sleep(0.01)"); err != nil {
				return fmt.Errorf("the callback's words: %w", err)
			}
		}
		return ctx.Err()
	})
	if err != nil || !result.FromPrimary() || rows != 1 || strings.Join(runs, " ") != "replica primary" {
		t.Fatalf("%v, %d rows, %+v, %v", runs, rows, result, err)
	}
	if len(result.Refusals) != 1 || !errors.Is(result.Refusals[0], replica.ErrRecoveryConflict) {
		t.Errorf("refusals: %v", result.Refusals)
	}
}

func TestAReplicaThatDiesDuringTheReadIsReplacedByThePrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	position := w.report(w.takeOver("k"), "new")
	w.ok(standby.CatchUp(ctx))
	runs := 0
	result, err := reader.Read(ctx, position, replica.WaitThenPrimary(10*time.Second), func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 {
			w.ok(standby.Kill(ctx))
		}
		_, err := tx.Exec(ctx, "select 1")
		return err
	})
	if err != nil || runs != 2 || !result.FromPrimary() || !errors.Is(result.Refusals[0], replica.ErrUnavailable) {
		t.Errorf("%d runs, %+v, %v", runs, result, err)
	}
}

// silent accepts connections and never says anything, as a network that drops
// packets.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return fmt.Sprintf("postgres://nobody@%s/postgres?sslmode=disable", listener.Addr())
}

func TestReplicasThatAreDownCostABoundedTimeAndThePolicyGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gone := w.replica(nil)
	down := pgtest.Connect(t, w.as(gone.Postgres, "postgres"))
	w.ok(gone.Stop(ctx))
	hangs := pgtest.Connect(t, silent(t))
	lease := w.takeOver("k")
	position := w.report(lease, "new")
	cfg := w.config()
	cfg.Timeout, cfg.ConnectTimeout = time.Minute, 200*time.Millisecond
	var seen []replica.Result
	cfg.Observe = func(r replica.Result, _ error) { seen = append(seen, r) }
	reader, err := replica.New(ctx, pgtest.Connect(t, w.as(w.server, "postgres")), []*pgxpool.Pool{down, hangs}, cfg)
	w.ok(err)
	for _, point := range []replica.Point{position, replica.Generation(lease.Position())} {
		for _, policy := range []replica.Policy{replica.WaitThenPrimary(45 * time.Second), replica.MarkedStale(45 * time.Second)} {
			began := time.Now()
			text, result, err := body(reader, "k", point, policy)
			if err != nil || text != "new" || !result.FromPrimary() || result.Stale || len(result.Refusals) != 2 {
				t.Errorf("%v: %q, %+v, %v", policy, text, result, err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("%v: took %v, though nobody was left to wait for", policy, took)
			}
		}
		_, result, err := body(reader, "k", point, replica.WaitThenPending(45*time.Second))
		if w.is(err, replica.ErrPending, replica.ErrUnavailable); !result.Pending {
			t.Errorf("%+v", result)
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d reads were observed, want 6", len(seen))
	}

	// And the primary as well.
	w.ok(w.server.Kill(ctx))
	cfg.Timeout = time.Second
	_, _, err = body(reader, "k", position, replica.WaitThenPrimary(time.Second))
	w.is(err, replica.ErrUnavailable)
	w.ok(w.server.Restart(ctx))
}

func TestADeadlineOfTheCallersBoundsTheReadAndPendingStaysPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	w.ok(standby.PauseReplay(ctx))
	position := w.report(w.takeOver("k"), "new")
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := reader.Read(short, position, replica.WaitThenPending(18*time.Second), func(context.Context, pgx.Tx) error { return nil })
	w.is(err, replica.ErrPending, context.DeadlineExceeded)
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestConnectionStringsThatWereMixedUpAreNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	w.exec("create database another")
	w.ok(standby.CatchUp(ctx))
	elsewhere := newWorld(t)
	other := elsewhere.replica(nil)
	pool := func(dsn string) *pgxpool.Pool { return pgtest.Connect(t, dsn) }
	primary := w.as(w.server, "postgres")
	for name, c := range map[string]struct {
		primary, replica string
		want             error
	}{
		"the primary as its replica":  {primary, primary, replica.ErrNotReplica},
		"the replica as primary":      {w.as(standby.Postgres, "postgres"), w.as(standby.Postgres, "postgres"), replica.ErrNotPrimary},
		"a replica of another":        {primary, elsewhere.as(other.Postgres, "postgres"), replica.ErrOtherCluster},
		"another database":            {primary, w.as(standby.Postgres, "another"), replica.ErrOtherCluster},
		"everything is as it must be": {primary, w.as(standby.Postgres, "postgres"), nil},
	} {
		_, err := replica.New(ctx, pool(c.primary), []*pgxpool.Pool{pool(c.replica)}, w.config())
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	reader := w.reader(standby)
	_, _, err := body(reader, "k", elsewhere.report(elsewhere.takeOver("k"), "x"), replica.WaitThenPrimary(time.Second))
	w.is(err, replica.ErrOtherCluster)
}

func TestAWriteIsRefusedOnceAndNotTriedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	position := w.report(w.takeOver("k"), "x")
	w.ok(standby.CatchUp(ctx))
	for _, policy := range []replica.Policy{replica.Primary(), replica.WaitThenPrimary(5 * time.Second)} {
		runs := 0
		_, err := reader.Read(ctx, position, policy, func(ctx context.Context, tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(ctx, "insert into report values ('w', 'w')")
			return err
		})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "25006" || runs != 1 {
			t.Errorf("%v: %d runs, %v, want one and 25006", policy, runs, err)
		}
	}
}

func TestAnErrorOfTheCallbackIsTheCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := w.reader()
	mine := errors.New("mine")
	for name, callback := range map[string]func(context.Context, pgx.Tx) error{
		"returned": func(context.Context, pgx.Tx) error { return mine },
		"its own deadline": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if _, err := tx.Exec(ctx, "select pg_sleep(20)"); err != nil {
				return fmt.Errorf("%w: %w", mine, err)
			}
			return nil
		},
	} {
		if _, err := reader.Read(ctx, nil, replica.Primary(), callback); !errors.Is(err, mine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := reader.Read(ctx, nil, replica.Primary(), func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "select 1/0")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "a statement of the callback had failed") {
		t.Errorf("an error was swallowed: %v", err)
	}
}
