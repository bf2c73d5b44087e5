package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fenceline/fenceline/consumer"
)

// handle applies events to tables through database/sql, with whatever is built
// on it, in the transaction in which the guard decides.
func handle(tx *sql.Tx) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, _ pgx.Tx, d consumer.Delivery) error {
		_, err := tx.ExecContext(ctx, "insert into public.effect (key, what) values ($1, $2)", d.Key, string(d.Payload))
		return err
	})
}

// applyWithSQL decides and applies a batch in one transaction of database/sql.
// The connection belongs to the transaction: take it out, begin, look below.
func applyWithSQL(ctx context.Context, db *sql.DB, guard *consumer.Guard, batch []consumer.Delivery) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var below pgx.Tx
	err = conn.Raw(func(driver any) (err error) {
		below, err = consumer.TxOf(driver.(*stdlib.Conn).Conn())
		return err
	})
	if err != nil {
		return err
	}
	if _, err := guard.Apply(ctx, below, batch, handle(tx)); err != nil {
		return err
	}
	return tx.Commit()
}

// The guard in a transaction of database/sql, as used by those whose tables are
// behind it.
func ExampleTxOf() {
	_ = applyWithSQL // the whole of it is above
}

func TestTheGuardWorksInATransactionOfDatabaseSQL(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	db := stdlib.OpenDBFromPool(l.pool)
	t.Cleanup(func() { _ = db.Close() })
	ctx := t.Context()
	ok(t, applyWithSQL(ctx, db, l.guard, l.deliver(evs(0, 1, 3)...)))
	ok(t, applyWithSQL(ctx, db, l.guard, l.deliver(evs(0, 2, 4)...)))
	l.effects("0.1", "0.2", "0.3", "0.4")
	l.at("0/1/4 {} free")

	// What fails leaves nothing, neither there nor in the guard.
	l.exec("alter table public.effect add check (what <> '0.6')")
	var h *consumer.HandlerError
	if err := applyWithSQL(ctx, db, l.guard, l.deliver(evs(0, 5, 6)...)); !errors.As(err, &h) || h.Index != 1 {
		t.Fatalf("got %v", err)
	}
	l.effects("0.1", "0.2", "0.3", "0.4")
}

func TestALentTransactionIsEndedByWhoHasBegunIt(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	ctx := t.Context()
	conn, err := l.pool.Acquire(ctx)
	ok(t, err)
	defer conn.Release()
	if _, err := consumer.TxOf(conn.Conn()); err == nil {
		t.Fatal("a connection in no transaction was taken for one")
	}
	tx, err := conn.Begin(ctx)
	ok(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	lent, err := consumer.TxOf(conn.Conn())
	ok(t, err)
	if err := lent.Commit(ctx); !errors.Is(err, consumer.ErrNotYours) {
		t.Fatalf("commit: %v", err)
	}
	if err := lent.Rollback(ctx); !errors.Is(err, consumer.ErrNotYours) {
		t.Fatalf("rollback: %v", err)
	}
	put := func(q pgx.Tx, what string) {
		t.Helper()
		if _, err := q.Exec(ctx, "insert into public.effect (key, what) values ('k', $1)", what); err != nil {
			t.Fatal(err)
		}
	}
	put(lent, "a")
	keep, err := lent.Begin(ctx)
	ok(t, err)
	put(keep, "b")
	lose, err := keep.Begin(ctx)
	ok(t, err)
	put(lose, "c")
	ok(t, lose.Rollback(ctx))
	ok(t, keep.Commit(ctx))
	if err := keep.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatalf("committed twice: %v", err)
	}
	ok(t, tx.Commit(ctx))
	l.effects("a", "b")
}
