package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

func TestAHolderPausedBehindTheGateLosesItsSessionAndTheTakeoverGoesOn(t *testing.T) {
	t.Parallel()
	pausedBehindTheGate(newWorld(t))
}

func pausedBehindTheGate(w *world) {
	a, b := w.worker("a"), w.worker("b")
	cfg := long
	cfg.GateTimeout = 2 * time.Second // within which it gets as far as it should before it is paused
	lease := a.acquireWith("k", cfg)
	resume := make(chan struct{})
	inside := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			err := write(ctx, tx)
			inside <- struct{}{}
			<-resume
			return err
		})
		done <- err
	}()
	<-inside
	w.expire("k")
	wait := long
	wait.Wait = 12 * time.Second
	fresh, err := b.Acquire(ctx, "k", wait) // returns when a's session has ended
	close(resume)
	w.ok(err)
	w.Cleanup(func() { _ = fresh.Release(ctx) })
	err = <-done
	if !errors.Is(err, fencing.ErrGateTimeout) && !errors.Is(err, fencing.ErrUnknownOutcome) {
		w.Errorf("the paused holder got %v", err)
	}
	w.wantWritten("k", written{})
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.is(err, fencing.ErrStale)
	w.wantWritten("k", written{})
}

func TestAStatementThatHangsBehindTheGateEndsByItsTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	cfg := long
	cfg.GateTimeout = 3 * time.Second // in which it gets as far as the statement
	lease := a.acquireWith("k", cfg)
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, "select pg_sleep(60)")
		return err
	})
	if sqlstate(err) != "57014" {
		t.Errorf("got %v", err)
	}
	a.clean(lease)
	// The timeouts were the transaction's alone.
	var idle, statement string
	w.ok(a.pool.QueryRow(ctx, "select current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')").Scan(&idle, &statement))
	if idle != "0" || statement != "0" {
		t.Errorf("left behind: %s, %s", idle, statement)
	}
}

func TestATakeoverBlockedByACommitNamesThePid(t *testing.T) {
	t.Parallel()
	blockedTakeover(newWorld(t))
}

func blockedTakeover(w *world) {
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	commit := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	cfg := long
	cfg.Wait = 100 * time.Millisecond
	_, err := b.Acquire(ctx, "k", cfg)
	w.is(err, fencing.ErrBlocked)
	var blocked *fencing.BlockedError
	if !errors.As(err, &blocked) || blocked.Key != "k" || len(blocked.PIDs) != 1 || uint32(blocked.PIDs[0]) != commit.pid {
		w.Errorf("%+v, want pid %d", blocked, commit.pid)
	}
	commit.goOn()
	w.ok((<-commit.done).err)
	b.acquire("k")
	w.wantWritten("k", written{1, 1, 1})
}

func TestATakeoverBlockedByATakeoverNamesThePid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	a.acquire("k")
	w.expire("k")
	other := w.session(w.producer)
	tx, err := other.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '1 s')")
	w.ok(err)
	cfg := long
	cfg.Wait = 100 * time.Millisecond
	_, err = a.Acquire(ctx, "k", cfg)
	var blocked *fencing.BlockedError
	if !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || uint32(blocked.PIDs[0]) != other.PgConn().PID() {
		t.Errorf("%v, want pid %d", err, other.PgConn().PID())
	}
}

func TestTheGateIsPassedOnlyInReadCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	conn := w.session(w.producer)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		w.ok(err)
		_, err = a.Enter(ctx, tx, lease.Position(), content("s", "x"))
		w.is(err, fencing.ErrIsolation)
		w.ok(tx.Rollback(ctx))
	}
	w.wantWritten("k", written{})
}

func TestThePoolsDefaultsDecideNeitherIsolationNorDurability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
			c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		})
		lease := a.acquireWith(level, fencing.LeaseConfig{TTL: time.Minute, RenewEvery: 100 * time.Millisecond})
		before := value[time.Time](w, "select expires_at from fenceline.lease where key = $1", level)
		pgtest.WaitTrue(t, w.admin, "select expires_at > $2 from fenceline.lease where key = $1", level, before) // renewed
		_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			var isolation, durability string
			err := tx.QueryRow(ctx, "select current_setting('transaction_isolation'), current_setting('synchronous_commit')").Scan(&isolation, &durability)
			if isolation != "read committed" || durability != "on" {
				t.Errorf("%s, synchronous_commit %s", isolation, durability)
			}
			return err
		})
		w.ok(err)
		w.ok(lease.Release(ctx))
	}
}

func TestAnIssuedTokenIsDurableWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	durableToken(newWorld(t))
}

func durableToken(w *world) {
	conn := w.session(w.producer)
	for _, off := range []string{"off", "local"} {
		tx, err := conn.Begin(ctx)
		w.ok(err)
		_, err = tx.Exec(ctx, "set local synchronous_commit = "+off)
		w.ok(err)
		_, err = tx.Exec(ctx, "select fenceline.acquire($1, 'a', '1 min', gen_random_uuid(), '1 s')", off)
		w.ok(err)
		var now string
		w.ok(tx.QueryRow(ctx, "select current_setting('synchronous_commit')").Scan(&now))
		if now != "on" {
			w.Errorf("a token is issued with synchronous_commit = %s", now)
		}
		w.ok(tx.Commit(ctx))
	}
}

// What is told of a key's lives is on the disk by then, too.
func TestALifeIsBegunAndEndedDurablyWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	durableLives(newWorld(t))
}

func durableLives(w *world) {
	conn := w.session(w.dsn)
	for _, off := range []string{"off", "local"} {
		for _, call := range []string{
			"select fenceline.acquire($1, 'a', '1 min', gen_random_uuid(), '1 s')",
			"select fenceline.rotate($1, (select epoch from fenceline.fence where key = $1), 1, gen_random_uuid(), '1 s')",
			"select fenceline.advance($1, 7)",
			"select fenceline.close($1, (select epoch from fenceline.fence where key = $1), 7)",
			"select fenceline.open($1)",
			"select fenceline.history_bump()",
		} {
			args := []any{off}
			if !strings.Contains(call, "$1") {
				args = nil
			}
			tx, err := conn.Begin(ctx)
			w.ok(err)
			_, err = tx.Exec(ctx, "set local synchronous_commit = "+off)
			w.ok(err)
			_, err = tx.Exec(ctx, call, args...)
			w.ok(err)
			var now string
			w.ok(tx.QueryRow(ctx, "select current_setting('synchronous_commit')").Scan(&now))
			if now != "on" {
				w.Errorf("%s with synchronous_commit = %s", call, now)
			}
			w.ok(tx.Commit(ctx))
		}
	}
}

func TestACallersOwnTransactionPassesTheGateAndCommitsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	conn := w.session(w.producer)
	tx, err := conn.Begin(ctx)
	w.ok(err)
	entered, err := a.Enter(ctx, tx, pos, content("s", "x"))
	w.ok(err)
	w.ok(outbox.Append(ctx, entered, outbox.Event{Topic: "results", Type: "t"}))
	w.is(entered.SetResult(ctx, make([]byte, 10000)), fencing.ErrInvalid)
	w.ok(entered.SetResult(ctx, []byte("small")))
	if entered.Gate().Key != "k" || entered.Gate().Token != pos.Token {
		t.Errorf("%+v", entered.Gate())
	}
	w.ok(tx.Commit(ctx))
	w.wantWritten("k", written{1, 0, 1})

	tx, err = conn.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, tx, pos, content("s", "x"))
	w.is(err, fencing.ErrReplayed)
	if e := evidence(w, err); string(e.Result) != "small" {
		t.Errorf("result %q", e.Result)
	}
	w.ok(tx.Rollback(ctx))
}

func TestATransactionThatContradictsItselfIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	old := a.acquire("k").Position()
	pos := a.takeOver("k").Position()
	conn := w.session(w.dsn) // may do anything, advance too
	for name, second := range map[string]func(pgx.Tx) error{
		"the same step twice": func(tx pgx.Tx) error { _, err := a.Enter(ctx, tx, pos, content("s", "x")); return err },
		"an older token":      func(tx pgx.Tx) error { _, err := a.Enter(ctx, tx, old, content("s2", "x")); return err },
		"a token ahead": func(tx pgx.Tx) error {
			_, err := a.Enter(ctx, tx, fencing.Position{Key: "k", Epoch: pos.Epoch, Token: pos.Token + 1}, content("s2", "x"))
			return err
		},
		"advance after the gate": func(tx pgx.Tx) error { _, err := a.Advance(ctx, tx, "k", 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := conn.Begin(ctx)
			w.ok(err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = a.Enter(ctx, tx, pos, content("s", "x"))
			w.ok(err)
			w.is(second(tx), fencing.ErrMisuse)
		})
	}
	// Two steps of one token are one commit with two receipts.
	tx, err := conn.Begin(ctx)
	w.ok(err)
	for _, step := range []string{"s1", "s2", "s1b"} {
		entered, err := a.Enter(ctx, tx, pos, content(step, "x"))
		w.ok(err)
		w.ok(outbox.Append(ctx, entered, outbox.Event{Topic: "results", Type: "t"}))
	}
	w.ok(tx.Commit(ctx))
	w.wantWritten("k", written{3, 0, 3})
}

func TestASecondFenceInTheSameTransactionIsLockedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	k, l := a.acquire("k").Position(), a.acquire("l").Position()
	commit := func(tx pgx.Tx, step string, order ...fencing.Position) error {
		for _, pos := range order {
			if _, err := a.Enter(ctx, tx, pos, content(step, "x")); err != nil {
				return err
			}
		}
		return nil
	}
	// In key order two clients never deadlock, against it one of them is told.
	c1, c2 := w.session(w.producer), w.session(w.producer)
	tx1, err := c1.Begin(ctx)
	w.ok(err)
	tx2, err := c2.Begin(ctx)
	w.ok(err)
	w.ok(commit(tx1, "1", k))
	w.ok(commit(tx2, "2", l))
	crossed := make(chan error, 1)
	go func() { crossed <- commit(tx1, "1", l) }()
	pgtest.WaitBlocked(t, w.admin, c1.PgConn().PID(), c2.PgConn().PID())
	err2 := commit(tx2, "2", k)
	var err1 error
	if err2 != nil { // the other one goes on only after this one's rollback
		w.ok(tx2.Rollback(ctx))
		err1 = <-crossed
	} else {
		err1 = <-crossed
	}
	if (sqlstate(err1) == "40P01") == (sqlstate(err2) == "40P01") {
		t.Errorf("want one deadlock, got %v and %v", err1, err2)
	}
	_, _ = tx1.Exec(ctx, "rollback")
	_, _ = tx2.Exec(ctx, "rollback")
	w.wantWritten("k", written{})
}

// A session that was ended while it was idle is told of by the next statement
// that is sent, and by no fault of that one: also where it is one of our own.
func TestAnIdleHolderIsNotToldOfAStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	cfg := long
	cfg.GateTimeout = 100 * time.Millisecond
	for name, f := range map[string]func(context.Context, fencing.Tx) error{
		"nothing queued": func(context.Context, fencing.Tx) error { return nil },
		"a statement":    func(_ context.Context, tx fencing.Tx) error { tx.Queue("select 1"); return nil },
		"an event": func(ctx context.Context, tx fencing.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{Topic: "t", Type: "x", Payload: []byte("x")})
		},
		"a query, at once": func(ctx context.Context, tx fencing.Tx) error { _, err := tx.Exec(ctx, "select 1"); return err },
	} {
		lease := a.acquireWith(name, cfg)
		_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			pid := tx.Conn().PgConn().PID()
			for end := time.Now().Add(30 * time.Second); value[bool](w, "select exists (select from pg_stat_activity where pid = $1)", pid); {
				if time.Sleep(10 * time.Millisecond); time.Now().After(end) {
					t.Fatal("the idle session is not ended")
				}
			}
			return f(ctx, tx)
		})
		if !errors.Is(err, fencing.ErrGateTimeout) && !errors.Is(err, fencing.ErrUnknownOutcome) {
			t.Errorf("%s: %v", name, err)
		}
		if errors.As(err, new(*fencing.StatementError)) || strings.Contains(err.Error(), "in_gate") {
			t.Errorf("%s: the error blames a statement: %v", name, err)
		}
	}
}

// Whoever waits in vain for a connection of a pool of which all are taken is told so.
func TestAPoolThatIsUsedUpIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquireWith("k", long)
	for range a.pool.Config().MaxConns {
		conn, err := a.pool.Acquire(ctx)
		w.ok(err)
		defer conn.Release()
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err := lease.Commit(short, content("s", "x"), write)
	_, second := a.Acquire(short, "other", long)
	for _, err := range []error{err, second} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connections of the pool are taken") {
			t.Errorf("the error is %v", err)
		}
	}
}
