package fencing

import (
	"context"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/jackc/pgx/v5"
)

// Pass says which gate a transaction has passed.
type Pass = gate.Pass

// Tx is a transaction that has passed the gate. It is a pgx.Tx for the
// business rows; its Commit and Rollback refuse, since the transaction ends
// with the callback. A nested Begin is a savepoint; it cannot shed the lock.
//
// A statement that begins or ends a transaction is not sent: it is ErrMisuse,
// and fails the commit. Savepoints are allowed. What gets past that, on Conn say,
// is found at the end; then what was queued is not written.
//
// When the callback has returned, everything answers with an error that matches
// ErrMisuse and pgx.ErrTxClosed, and Conn and LargeObjects give nothing: the
// connection does other work. What Conn gave before is not to be kept.
type Tx interface {
	pgx.Tx
	// Gate says which gate it has passed.
	Gate() Pass
	// Queue puts a statement into the round trip of COMMIT; where callbacks share a
	// transaction, into one before the next of them begins. Its result is not
	// seen; its error fails the commit, and is a [*StatementError]. It runs after
	// everything that the callback did, and a savepoint that is rolled back does
	// not take it back. An empty statement (an [*InvalidError]) and one that begins
	// or ends a transaction (ErrMisuse) fail the commit without being sent. After
	// the callback nothing can be queued: it is lost, and logged as an error.
	Queue(sql string, args ...any)
	// SetResult puts a small result, at most 8 KiB, into the receipt, in the
	// round trip of COMMIT. A replay gets it back.
	SetResult(result []byte) error
}

// maxResult is what a receipt can carry; the table's check says the same.
const maxResult = 8 << 10

// errOwned is the answer to Commit and Rollback.
var errOwned = &wrappedError{"fencing: the transaction ends with the callback: return nil to commit it, an error to roll it back", ErrMisuse, nil}

// tx is a transaction on a connection of its own, begun in the same round trip
// as the gate (which pgx's own Begin could not share).
type tx struct {
	lent
	*queue
	large pgx.Tx // what LargeObjects has made; nil for none
}

var _ Tx = (*tx)(nil)

func (f *Fences) tx(conn *pgx.Conn, g Gate, l *lending) *tx {
	return &tx{lent: lent{conn, conn, l}, queue: f.queue(g.Position, g.Content.Step, l)}
}

func (t *tx) Commit(context.Context) error { return t.owned() }
func (t *tx) Rollback(context.Context) error {
	return t.owned()
}

func (t *tx) owned() error {
	if err := t.lent.open(); err != nil {
		return err
	}
	return errOwned
}

// Begin makes a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.native(ctx)
	if err != nil {
		return nil, err
	}
	return begin(ctx, inner, &t.lent)
}

// LargeObjects is for callbacks that use PostgreSQL's large objects.
func (t *tx) LargeObjects() pgx.LargeObjects {
	if t.lent.open() != nil {
		return pgx.LargeObjects{}
	}
	if t.large == nil {
		inner, err := t.native(context.Background())
		if err != nil {
			return pgx.LargeObjects{}
		}
		t.large = inner
	}
	return t.large.LargeObjects()
}

// close has large objects that were kept answer pgx.ErrTxClosed, which only
// pgx's own transaction can tell them. It must come when the real one has ended:
// this "commit" is not sent, since its context is over.
func (t *tx) close() {
	if t.large == nil {
		return
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = t.large.Commit(over) // the error that it was not sent
}

// native gives pgx's own transaction type over the transaction that is open
// already, for what only it can make. Its begin is a statement that does
// nothing, and so would its commit be.
func (t *tx) native(ctx context.Context) (pgx.Tx, error) {
	if err := t.lent.open(); err != nil {
		return nil, err
	}
	return t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "select", CommitQuery: "select"})
}

// savepoint is a nested transaction of a callback.
type savepoint struct {
	lent
	inner pgx.Tx
}

var _ pgx.Tx = (*savepoint)(nil)

// begin makes a savepoint within outer, whose pgx transaction is inner.
func begin(ctx context.Context, inner pgx.Tx, outer *lent) (pgx.Tx, error) {
	if err := outer.open(); err != nil {
		return nil, err
	}
	nested, err := inner.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{lent{nested, outer.conn, outer.lending}, nested}, nil
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) { return begin(ctx, s.inner, &s.lent) }

func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.inner.Commit(ctx)
}

func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.inner.Rollback(ctx)
}

func (s *savepoint) LargeObjects() pgx.LargeObjects {
	if s.open() != nil {
		return pgx.LargeObjects{}
	}
	return s.inner.LargeObjects()
}
