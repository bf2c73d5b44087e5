package fencing_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// ways are all the ways in which a statement goes through a transaction.
func ways(ctx context.Context, tx pgx.Tx, sql string) map[string]error {
	_, exec := tx.Exec(ctx, sql)
	rows, query := tx.Query(ctx, sql)
	rows.Close()
	b := &pgx.Batch{}
	b.Queue("insert into public.result values ('k', 'in a batch')")
	b.Queue(sql)
	_, prepare := tx.Prepare(ctx, "p", sql)
	return map[string]error{
		"exec": exec, "query": query, "rows": rows.Err(), "row": tx.QueryRow(ctx, sql).Scan(), "batch": tx.SendBatch(ctx, b).Close(), "prepare": prepare,
	}
}

// over wants every use of what a callback was given to be refused as such.
func (w *world) over(tx pgx.Tx) {
	w.Helper()
	got := ways(ctx, tx, "insert into public.result values ('k', 'late')")
	_, got["begin"] = tx.Begin(ctx)
	_, got["copy"] = tx.CopyFrom(ctx, pgx.Identifier{"public", "result"}, []string{"key"}, pgx.CopyFromRows([][]any{{"k"}}))
	got["commit"], got["rollback"] = tx.Commit(ctx), tx.Rollback(ctx)
	for way, err := range got {
		if !errors.Is(err, fencing.ErrMisuse) || !errors.Is(err, pgx.ErrTxClosed) {
			w.Errorf("%s: %v", way, err)
		}
	}
	if tx.Conn() != nil {
		w.Error("the connection is still given")
	}
}

func (w *world) lost(tx outbox.Tx, setResult func([]byte) error) {
	w.Helper()
	for what, err := range map[string]error{"append": outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "t"}), "result": setResult([]byte("x"))} {
		if !errors.Is(err, fencing.ErrMisuse) || !errors.Is(err, pgx.ErrTxClosed) {
			w.Errorf("%s: %v", what, err)
		}
	}
}

// wrapped is a caller's own transaction around ours.
type wrapped struct{ fencing.Tx }

// The worker has one connection: what got through would be in the transaction
// that is on it by then.
func TestNothingOfACallbackReachesItsConnectionOnceItHasReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	for i, end := range []func() error{func() error { return nil }, func() error { return errCallback }, func() error { panic(errCallback) }} {
		var kept fencing.Tx
		var nested pgx.Tx
		var large pgx.LargeObjects
		func() {
			defer func() { _ = recover() }()
			_, _ = lease.Commit(ctx, content(fmt.Sprint(i), "x"), func(ctx context.Context, tx fencing.Tx) (err error) {
				kept, large = tx, tx.LargeObjects()
				nested, err = tx.Begin(ctx)
				w.ok(err)
				return end()
			})
		}()
		_, err := lease.Commit(ctx, content(fmt.Sprint("other ", i), "x"), func(ctx context.Context, tx fencing.Tx) error {
			w.over(kept)
			w.over(nested)
			w.lost(kept, kept.SetResult)
			w.lost(wrapped{kept}, kept.SetResult)
			_, err := large.Create(ctx, 0)
			w.is(err, pgx.ErrTxClosed)
			_, err = tx.Exec(ctx, "select 1") // its own goes on
			return err
		})
		w.ok(err)
	}
	w.wantWritten("k", written{receipts: 4}) // of the one that returned nil, and the others
}

// callsBack is an argument that is encoded when COMMIT is about to be sent.
type callsBack func()

func (c callsBack) Value() (driver.Value, error) { c(); return "x", nil }

func TestATransactionIsOverBeforeItsCommitIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	asked := false
	_, err := lease.Commit(ctx, content("s", "x"), func(_ context.Context, tx fencing.Tx) error {
		tx.Queue("select $1::text", callsBack(func() {
			asked = true
			w.over(tx)
			w.lost(tx, tx.SetResult)
		}))
		return nil
	})
	w.ok(err)
	if !asked {
		t.Error("the argument was not encoded")
	}
	w.wantWritten("k", written{receipts: 1})
}

func TestABatchThatWasBuiltTakesNothingMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lease := w.worker("a").acquire("k")
	var kept *fencing.Batch
	_, err := lease.CommitBatch(ctx, content("s", "x"), func(b *fencing.Batch) error {
		kept = b
		b.Queue("select $1::text", callsBack(func() { w.lost(b, b.SetResult) }))
		return nil
	})
	w.ok(err)
	w.lost(kept, kept.SetResult)
	w.wantWritten("k", written{receipts: 1})
}

func TestAStatementThatEndsTheTransactionIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lease := w.worker("a").acquire("k")
	for _, sql := range []string{"commit", "commit and chain", "commit; begin", "begin; commit", "rollback", "rollback and chain", "/* x */ END", "prepare transaction 'x'", "select 1; commit"} {
		attempt := func(step string, refuses func(ctx context.Context, tx fencing.Tx)) {
			_, err := lease.Commit(ctx, content(step+sql, "x"), func(ctx context.Context, tx fencing.Tx) error {
				w.ok(write(ctx, tx))
				refuses(ctx, tx)
				return nil // having swallowed the error
			})
			w.is(err, fencing.ErrMisuse)
		}
		attempt("tx ", func(ctx context.Context, tx fencing.Tx) {
			for way, err := range ways(ctx, tx, sql) {
				if !errors.Is(err, fencing.ErrMisuse) {
					t.Errorf("%s by %s: %v", sql, way, err)
				}
			}
			if status := tx.Conn().PgConn().TxStatus(); status != 'T' {
				t.Errorf("%s: the transaction is in state %c", sql, status)
			}
		})
		attempt("nested ", func(ctx context.Context, tx fencing.Tx) {
			nested, err := tx.Begin(ctx)
			w.ok(err)
			_, err = nested.Exec(ctx, sql)
			w.is(err, fencing.ErrMisuse)
		})
		attempt("queue ", func(_ context.Context, tx fencing.Tx) { tx.Queue(sql) })
	}
	w.wantWritten("k", written{})
	_, err := lease.Commit(ctx, content("savepoints", "x"), func(ctx context.Context, tx fencing.Tx) error {
		for _, sql := range []string{"savepoint s", "insert into public.result values ('k', 'undone')", "rollback to s", "release savepoint s"} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return write(ctx, tx)
	})
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

// What is sent on the connection itself can't be refused. A retry finds the
// receipt, and would not bring the event.
func TestWhoEndsTheTransactionByTheConnectionIsToldThatTheEventsAreNotWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lease := w.worker("a").acquire("k")
	for i, sql := range []string{"commit", "commit and chain", "rollback"} {
		commit := func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(sql, "x"), func(ctx context.Context, tx fencing.Tx) error {
				if err := write(ctx, tx); err != nil {
					return err
				}
				_, err := tx.Conn().Exec(ctx, sql)
				return err
			})
		}
		_, err := commit()
		w.is(err, fencing.ErrMisuse)
		if !strings.Contains(err.Error(), "1 queued statements (events, the result) were NOT written") {
			t.Errorf("%s: %v", sql, err)
		}
		committed := min(i+1, 2)
		w.wantWritten("k", written{committed, committed, 0})
	}
}

func TestAnEmptyStatementCannotBeQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lease := w.worker("a").acquire("k")
	for _, sql := range []string{"", " \n", ";", "-- select 1", "/* x */"} {
		_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			tx.Queue(sql)
			return write(ctx, tx)
		})
		w.is(err, fencing.ErrInvalid)
		_, err = lease.CommitBatch(ctx, content("s", "x"), func(b *fencing.Batch) error {
			b.Queue(sql)
			return writeBatch(b)
		})
		w.is(err, fencing.ErrInvalid)
	}
	w.wantWritten("k", written{})
}

// disguised is a statement that becomes another one where it is sent.
type disguised string

func (d disguised) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(d), nil, nil
}
