package fencing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/fenceline/fenceline/internal/sqltext"
	"github.com/fenceline/fenceline/internal/unsent"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errOver is the answer of everything that a callback was given, once it has
// returned: behind that its connection does COMMIT, and then the work of others.
var errOver = &wrappedError{"fencing: the transaction has ended with its callback: nothing was sent; use it in the callback only, and wait there for the goroutines that use it", ErrMisuse, pgx.ErrTxClosed}

// lending is the time in which a callback may use what it was given. It is over
// before COMMIT or ROLLBACK is sent. The library's own statements don't ask it.
//
// A call that has passed the check when the callback returns is still under way
// then: it has the connection busy, and COMMIT isn't sent (see ended), or it
// finds it busy.
type lending struct {
	over     atomic.Bool
	appended atomic.Bool // events, by a statement that was not queued
	company  bool        // what others do in the transaction is to stay as they left it
	// mu has a statement either queued before over is set, or refused.
	mu      sync.Mutex
	queued  *[]statement
	refused error // the first statement that was not taken
}

// end refuses whatever comes from here on. It gives what was refused before,
// which fails the commit although the callback may have returned nil: it
// believes that what it asked for was done.
func (l *lending) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over.Store(true)
	return l.refused
}

func (l *lending) open() error {
	if l.over.Load() {
		return errOver
	}
	return nil
}

// check looks at a statement before it is sent.
func (l *lending) check(sql string) error {
	if err := l.open(); err != nil {
		return err
	}
	if l.company && sqltext.ChangesSettings(sql) {
		l.refuse(errInCompany)
		return errInCompany
	}
	if !sqltext.EndsTransaction(sql) {
		return nil
	}
	err := &wrappedError{fmt.Sprintf("fencing: %.60q would begin or end a transaction: it was not sent, and nothing is committed; return nil to commit, an error to roll back, and use savepoints (Begin) for parts", sql), ErrMisuse, nil}
	l.refuse(err)
	return err
}

func (l *lending) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused = err
	}
}

// queue takes a statement along, unless it was refused.
func (l *lending) queue(sql string, args []any, own bool) error {
	if !own {
		if sqltext.Empty(sql) {
			err := &InvalidError{"queued statement", fmt.Sprintf("%.60q is empty", sql)}
			l.refuse(err)
			return err
		}
		if err := l.check(sql); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil {
		return err
	}
	*l.queued = append(*l.queued, statement{sql: sql, args: args})
	return nil
}

// queue is what a transaction that has passed a gate takes along with COMMIT.
// Several gates share the lending.
type queue struct {
	pass Pass
	f    *Fences
	*lending
}

func (q *queue) Gate() Pass { return q.pass }

func (q *queue) Queue(sql string, args ...any) {
	err := q.lending.queue(sql, args, sql == q.f.sql.append)
	if err == nil {
		return
	}
	if len(args) == 1 {
		if call, ok := args[0].(*gate.Append); ok {
			call.Refused = err // which outbox.Append returns
			return
		}
	}
	if q.over.Load() { // too late to fail the commit
		q.f.cfg.Logger.Error("a statement that was queued after its callback had returned is lost", "key", q.pass.Key, "step", q.pass.Step, "sql", sql, "error", err)
	}
}

func (q *queue) SetResult(result []byte) error {
	if err := validateResult(result); err != nil {
		return err
	}
	return q.lending.queue(q.f.sql.setResult, []any{q.pass.Key, q.pass.Epoch, q.pass.Token, q.pass.Step, result}, true)
}

// executor is what a *pgx.Conn and a pgx.Tx have in common.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
}

// lent is a connection or a savepoint that is lent to a callback.
type lent struct {
	on   executor
	conn *pgx.Conn
	*lending
}

func (l *lent) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.check(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	if len(args) == 1 {
		if _, is := args[0].(*gate.Append); is {
			l.appended.Store(true)
		}
	}
	return l.on.Exec(ctx, sql, args...)
}

func (l *lent) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.check(sql); err != nil {
		return unsent.Rows{Error: err}, err
	}
	return l.on.Query(ctx, sql, args...)
}

func (l *lent) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.check(sql); err != nil {
		return unsent.Rows{Error: err}
	}
	return l.on.QueryRow(ctx, sql, args...)
}

func (l *lent) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := l.open(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	for _, q := range b.QueuedQueries {
		if err := l.check(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return l.on.SendBatch(ctx, b)
}

func (l *lent) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := l.open(); err != nil {
		return 0, err
	}
	return l.on.CopyFrom(ctx, table, columns, src)
}

func (l *lent) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.check(sql); err != nil {
		return nil, err
	}
	return l.on.Prepare(ctx, name, sql)
}

// Conn ends a callback that has company, which then runs again alone: with the
// connection itself it could commit what the others have written.
func (l *lent) Conn() *pgx.Conn {
	if l.open() != nil {
		return nil
	}
	if l.company {
		l.refuse(errInCompany)
		panic(errInCompany)
	}
	return l.conn
}
