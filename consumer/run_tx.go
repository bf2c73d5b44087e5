package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// settingsSQL follows BEGIN, in the same round trip.
//
// The two timeouts are for the handler that doesn't heed its context: one that
// hangs in a statement (with a context of its own), and one that hangs in Go.
// Without them such a handler would hold the guards of its batch for ever,
// against the member that has the partition next, too. Lower ones of the login
// or the database stay.
//
// The mark is how the end of the batch tells whether this is still the
// transaction that was begun: a local setting ends with its transaction, also
// where COMMIT or ROLLBACK has chained another one to it, which by its status
// alone can't be told from this one.
const settingsSQL = `
select set_config('statement_timeout', least(nullif(extract(epoch from current_setting('statement_timeout')::interval) * 1000, 0), $1::int8)::int8::text, true),
       set_config('idle_in_transaction_session_timeout', least(nullif(extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0), $1::int8)::int8::text, true),
       set_config('fenceline.batch', $2, true)`

// idleGrace is how much longer than its context a handler may keep a
// transaction idle: its context is to end first, so that the error says so. A
// variable only for tests.
var idleGrace = 5 * time.Second

var lastMark atomic.Int64

// ownTx is a transaction of the runner's. It is begun by the first batch of
// statements, in the same round trip: an event that comes alone is applied in two,
// and the handler's.
//
// READ COMMITTED: the guard needs to see, under its lock, what was committed
// while it waited for it. A stricter level would show its own snapshot.
type ownTx struct {
	pgx.Tx   // nil until something was sent
	conn     *pgxpool.Conn
	mark     string
	limit    time.Duration // of a statement, and of being idle
	patience time.Duration // of waiting for an answer
	asked    bool          // the server has answered BEGIN
	begun    bool          // it has begun
	ended    bool          // it has committed
	over     atomic.Bool   // nobody may use it any more
	kept     bool          // a handler was given what only pgx can end
}

func (t *ownTx) send(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, b)
	}
	var first pgx.Batch
	first.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite, CommitQuery: notSent})
	begin := first.QueuedQueries[0]
	begin.Fn = func(br pgx.BatchResults) error {
		_, err := br.Exec()
		t.asked = true
		return err
	}
	first.Queue(settingsSQL, t.limit.Milliseconds(), t.mark).Exec(func(pgconn.CommandTag) error {
		t.begun = true
		return nil
	})
	first.QueuedQueries = append(first.QueuedQueries, b.QueuedQueries...)
	results := t.conn.SendBatch(ctx, &first)
	t.Tx = results.Tx()
	return results
}

// notSent is what pgx's own Commit would send. It is called to have large objects
// that were kept answer pgx.ErrTxClosed, when COMMIT was sent already, and with a
// context that is over. (COMMIT itself would be prepared anew after each of these.)
// A tracer of the pool's takes it for a statement that has failed, so it is called
// only where it must be.
const notSent = "select"

func (t *ownTx) closed(ctx context.Context) {
	t.ended = true
	t.over.Store(true)
	if t.kept {
		over, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.Tx.Commit(over)
	}
}

// begin begins it at once, for work that doesn't send a batch first.
func (t *ownTx) begin(ctx context.Context) error { return t.SendBatch(ctx, &pgx.Batch{}).Close() }

// end gives the connection back, with no transaction open.
func (t *ownTx) end(ctx context.Context) {
	t.over.Store(true)
	if t.Tx != nil && !t.ended {
		_ = t.Rollback(ctx)
	}
	t.conn.Release()
}

// leave closes the connection: its server is a standby, or was a primary once. The
// pool would hand it out again and again; a new one goes wherever the primary is now.
func (t *ownTx) leave(p *partition) {
	ending, cancel := p.ending()
	defer cancel()
	_ = t.conn.Conn().Close(ending)
}

// last is what is sent when the work of a transaction is done.
type last struct {
	pgx.Batch
	// look: an answer must be looked at before COMMIT is sent.
	look bool
	// moved are guards to which nothing has happened but their next events, and few;
	// read is what was read: they are written with the look at the mark.
	moved advances
	read  *toStore
	// whole ends when no further event is to be begun, and applied is how many of
	// the deliveries were decided by then.
	whole   context.Context
	applied int
	// alone: what waits for the deliveries goes on in a transaction of its own, one
	// record in each. handled is how many events were given to the handler, sole
	// the only one of them, if there is one.
	alone   bool
	handled int
	sole    *Delivery
}

// txError is a failed transaction and what is known of its connection.
type txError struct {
	err  error
	lost bool
	// ours: a statement of the guard's failed, not of the handler's.
	ours bool
	// begun: there was a transaction, so the database was there. Without one no
	// event can be blamed.
	begun bool
	// handled is how many events had their handler called, sole the only one: what
	// is said of the whole transaction, as by a deferred constraint, is said of it.
	handled int
	sole    *Delivery
}

func (e *txError) Error() string { return e.err.Error() }
func (e *txError) Unwrap() error { return e.err }

// isPassing is [passing] for what transact returns. A statement of ours that
// was cancelled was cancelled by somebody, not because of an event.
func isPassing(err error) bool {
	var t *txError
	if !errors.As(err, &t) {
		return passing(err, false)
	}
	if !t.begun && t.lost {
		return true
	}
	var pg *pgconn.PgError
	return passing(t.err, t.lost) || t.ours && errors.As(t.err, &pg) && pg.Code == "57014"
}

// tookConnection says that the connection was lost in the middle of a
// transaction. Once, that is an accident. Again and again at the same event,
// while every new connection works, it is the event.
func tookConnection(err error) bool {
	var t *txError
	return errors.As(err, &t) && t.begun && t.lost && passing(t.err, t.lost)
}

// inTx does work in a transaction and commits it. What work queues in last is
// sent when it has returned, together with the look at the mark. The error is a
// [*txError], or a [*fatalError].
func (p *partition) inTx(work func(ctx context.Context, tx pgx.Tx, last *last) error) error {
	return p.inBatch(func(ctx context.Context, tx pgx.Tx, last *last) error {
		if err := tx.(*ownTx).begin(ctx); err != nil {
			return err
		}
		return work(ctx, tx, last)
	})
}

// inBatch is the same for work that begins by sending a batch: see [ownTx].
func (p *partition) inBatch(work func(ctx context.Context, tx pgx.Tx, last *last) error) error {
	ctx := p.applying
	conn, err := p.acquire(ctx)
	if err != nil {
		return unbegun(err)
	}
	tx := &ownTx{conn: conn, mark: fmt.Sprint(lastMark.Add(1)), limit: p.cfg.HandlerTimeout + idleGrace, patience: p.patience()}
	defer func() { // also of a panic, and of a runtime.Goexit
		ending, cancel := p.ending()
		defer cancel()
		tx.end(ending)
	}()
	end := last{whole: p.whole}
	committing := false
	if err = work(ctx, tx, &end); err == nil {
		committing, err = p.commit(tx, &end)
	}
	err = pooled(err)
	lost := conn.Conn().IsClosed()
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case committing && refusedStatement(err) == nil: // else it is a deferred trigger's statement, which no event's fault is either
		return &txError{err: fmt.Errorf("consumer: commit: %w", err), lost: lost, begun: true, handled: end.handled, sole: end.sole}
	case !tx.begun && (tx.asked || !errors.As(err, &pg) || pgsession.Ends(pg)):
		// (Before it is asked, statements are prepared: that one can't be is not for
		// want of a transaction.)
		tx.leave(p)
		return unbegun(err)
	case readOnly(err):
		tx.leave(p)
	}
	var h *HandlerError
	failed := &txError{err: err, lost: lost, ours: !errors.As(err, &h), begun: tx.begun, handled: end.handled, sole: end.sole}
	if refused := refusedStatement(err); refused != nil {
		return &fatalError{refused}
	}
	if failed.ours && !blurred(err) && !isPassing(failed) && ctx.Err() == nil {
		// Nothing that an event can be blamed for: a right that is missing, a
		// stream of another policy.
		return &fatalError{err}
	}
	return failed
}

// unbegun is the error of a transaction that there never was.
func unbegun(err error) error {
	if refused := refusedLogin(err); refused != nil {
		return &fatalError{refused}
	}
	return &txError{err: fmt.Errorf("consumer: begin: %w", err), lost: true, ours: true}
}

// ending bounds what ends a transaction, from when it is sent: the handlers of a
// batch may take as long as they like together. It is not reached by the stop
// signal: a connection must not go back to the pool with a transaction open, and a
// COMMIT that is cancelled has an unknown outcome. If it has one all the same, the
// work is done again, and the guards know what was done.
func (p *partition) ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(p.applying), p.cfg.CommitTimeout)
}
