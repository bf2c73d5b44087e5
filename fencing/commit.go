package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Receipt is the answer to a commit that has happened.
type Receipt struct {
	// Position is under which it was committed, Step which commit it was.
	Position Position
	Step     string
	// Replayed says that an earlier attempt had committed: the callback did not
	// run, or its writes were undone.
	Replayed bool
	// CommittedAt is the time of that commit, on the database's clock, when it
	// passed the gate.
	CommittedAt time.Time
	// Result is what the first attempt gave to SetResult, on a replay; else nil.
	Result []byte
}

// Commit runs fn in a transaction that has passed the gate of pos, and commits
// it: with what fn has written, a receipt of (pos, content.Step). A lease's own
// [Lease.Commit] is this with its position; with the bare position, another
// process can retry what a first one may have committed.
//
// Two round trips enclose fn: BEGIN with the gate, and what was queued
// (outbox.Append, SetResult) with COMMIT. fn may run more than once over
// retries and must touch nothing but its transaction. When it returns an error
// or panics, everything is rolled back, and the error is returned as it is.
//
// A deadline of ctx ends the wait for the gate and fn; from sending COMMIT on,
// Config.CommitTimeout takes its place.
//
// Answers: a Receipt; Replayed in it when the same attempt had committed
// before, also after a takeover. A [*RefusedError] that matches ErrStale,
// ErrConflict, ErrUnconfirmable or ErrClosed: nothing was written.
// ErrUnknownOutcome: ask again with the same position and content.
// ErrNotReplicated together with a Receipt. ErrHistory, ErrGateTimeout,
// ErrRolledBack, ErrMisuse, [*InvalidError], or the error of a statement:
// nothing was written.
func (f *Fences) Commit(ctx context.Context, pos Position, content Content, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	return f.commit(ctx, pos, content, f.cfg.GateTimeout, nil, fn)
}

func (f *Fences) commit(ctx context.Context, pos Position, content Content, timeout time.Duration, lease context.Context, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	receipt := Receipt{Position: pos, Step: content.Step}
	if err := errors.Join(pos.validate(), content.validate()); err != nil {
		return Receipt{}, err
	}
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return Receipt{}, fmt.Errorf("fencing: commit of %q: connect: %w", pos.Key, err)
	}
	defer conn.Release() // a connection that is still in a transaction is closed by the pool
	t := &tx{conn: conn.Conn(), pass: Pass{Schema: f.cfg.Schema, Key: pos.Key, Epoch: pos.Epoch, Token: pos.Token, Step: content.Step}, sql: &f.sql}

	receipt.CommittedAt, err = t.enter(ctx, content, timeout)
	if err != nil {
		f.rollback(conn)
		return f.refused(receipt, err)
	}
	if err := t.run(ctx, lease, fn, func() { f.rollback(conn) }); err != nil {
		f.rollback(conn)
		return Receipt{}, gateTimeout(err)
	}
	if err := t.ended(); err != nil {
		f.rollback(conn)
		return Receipt{}, fmt.Errorf("fencing: commit of %q: %w", pos.Key, err)
	}
	if err := t.commit(ctx, f.cfg.CommitTimeout); err != nil {
		f.rollback(conn)
		if errors.Is(err, ErrNotReplicated) {
			return receipt, err
		}
		return Receipt{}, err
	}
	return receipt, nil
}

// refused turns the gate's answer "replayed" into a receipt.
func (f *Fences) refused(receipt Receipt, err error) (Receipt, error) {
	var r *RefusedError
	if !errors.As(err, &r) || r.Answer != ErrReplayed {
		return Receipt{}, err
	}
	receipt.Replayed = true
	receipt.CommittedAt = r.Evidence.CommittedAt
	receipt.Result = r.Evidence.Result
	return receipt, nil
}

// enter begins the transaction and passes the gate, in one round trip.
func (t *tx) enter(ctx context.Context, content Content, timeout time.Duration) (committedAt time.Time, err error) {
	b := &pgx.Batch{}
	b.Queue(t.sql.begin)
	digest := content.Digest()
	b.Queue(t.sql.enter, t.pass.Key, t.pass.Epoch, t.pass.Token, t.pass.Step, digestAlgo, digest[:], timeout).
		QueryRow(func(row pgx.Row) error { return row.Scan(&committedAt) })
	if err := t.conn.SendBatch(ctx, b).Close(); err != nil {
		if refused := translate(err); refused != err {
			return time.Time{}, refused
		}
		return time.Time{}, fmt.Errorf("fencing: enter the gate of %q: nothing was written: %w", t.pass.Key, err)
	}
	return committedAt, nil
}

// run calls fn with a context that also ends with the trust in the lease.
// A panic (or a runtime.Goexit) rolls back on its way out.
func (t *tx) run(ctx context.Context, lease context.Context, fn func(ctx context.Context, tx Tx) error, rollback func()) error {
	if lease != nil && lease.Err() != nil {
		rollback()
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", t.pass.Key, context.Cause(lease))
	}
	returned := false
	defer func() {
		if !returned {
			rollback()
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if lease != nil {
		defer context.AfterFunc(lease, func() { cancel(context.Cause(lease)) })()
	}
	err := fn(ctx, t)
	returned = true
	if lease != nil && lease.Err() != nil {
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", t.pass.Key, errors.Join(context.Cause(lease), err))
	}
	return err
}

// commit sends what was queued, and COMMIT, in one round trip. The caller's
// deadline does not reach it: a COMMIT that is cancelled may still happen.
func (t *tx) commit(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	forgetNotice(t.conn.PgConn())
	b := &pgx.Batch{}
	for _, s := range t.queued {
		b.Queue(s.sql, s.args...)
	}
	var tag pgconn.CommandTag
	b.Queue(t.sql.commit).Exec(func(c pgconn.CommandTag) error { tag = c; return nil })
	err := t.conn.SendBatch(ctx, b).Close()
	var pg *pgconn.PgError
	switch {
	case err == nil && tag.String() == "COMMIT":
	case err == nil: // ROLLBACK: the server's answer to COMMIT of a failed transaction
		return fmt.Errorf("fencing: commit of %q: %w", t.pass.Key, ErrRolledBack)
	case errors.As(err, &pg) && (!fatal(pg) || pg.Code == "25P03"):
		// The server refused, so nothing was written: an error of one of the
		// statements, or of a deferred constraint. 25P03 ends only idle
		// sessions, which had not received COMMIT.
		if refused := translate(err); refused != err {
			return refused
		}
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", t.pass.Key, err)
	default:
		// A lost connection, a time-out, or a session that was ended while it
		// waited for its standby: COMMIT may have happened.
		return &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: %v (%v)", t.pass.Key, t.pass.Step, ErrUnknownOutcome, err), ErrUnknownOutcome, err}
	}
	if notReplicated(t.conn.PgConn()) {
		return fmt.Errorf("fencing: commit of %q step %q: %w", t.pass.Key, t.pass.Step, ErrNotReplicated)
	}
	return nil
}

// gateTimeout finds the database's own word in an error that says only that
// the connection is gone: the server ended the idle session with a FATAL error
// before it closed it.
func gateTimeout(err error) error {
	if translated := translate(err); translated != err && errors.Is(translated, ErrGateTimeout) {
		return translated
	}
	return err
}

// rollback ends what is left of the transaction, if the connection still lives.
// The caller's context may be over, so it is not asked.
func (f *Fences) rollback(conn *pgxpool.Conn) {
	c := conn.Conn()
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := c.Exec(ctx, "rollback"); err != nil {
		_ = c.Close(ctx) // the server rolls back what loses its connection
	}
}

// Enter passes the gate inside a transaction of the caller's, who commits it.
// It is for those who must own their transaction; [Fences.Commit] is shorter
// and handles every outcome. The transaction must be READ COMMITTED, and Enter
// a statement of its own in it.
//
// Every answer but a first commit is an error, after which the transaction can
// only be rolled back: a [*RefusedError] also for ErrReplayed.
func (f *Fences) Enter(ctx context.Context, t pgx.Tx, pos Position, content Content) (*Entered, error) {
	if err := errors.Join(pos.validate(), content.validate()); err != nil {
		return nil, err
	}
	digest := content.Digest()
	var at time.Time
	err := t.QueryRow(ctx, f.sql.enter, pos.Key, pos.Epoch, pos.Token, content.Step, digestAlgo, digest[:], f.cfg.GateTimeout).Scan(&at)
	if err != nil {
		return nil, translate(err)
	}
	return &Entered{Tx: t, pass: Pass{Schema: f.cfg.Schema, Key: pos.Key, Epoch: pos.Epoch, Token: pos.Token, Step: content.Step}, sql: &f.sql}, nil
}
