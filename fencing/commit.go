package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
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

	// behind comes with an error: the gate was passed, and what was behind it
	// is rolled back. Then no earlier attempt of the callback shape has
	// committed, nor can any more: it held the lock on which the gate waits.
	behind bool
}

// Commit runs fn in a transaction that has passed the gate of pos, and commits
// it: with what fn has written, a receipt of (pos, content.Step). A lease's own
// [Lease.Commit] is this with its position; with the bare position, another
// process can retry what a first one may have committed.
//
// Two round trips enclose fn: BEGIN with the gate, and what was queued
// (outbox.Append, SetResult) with COMMIT. Where nothing has to be read behind
// the gate, [Fences.CommitBatch] takes one. fn may run more than once over
// retries and must touch nothing but its transaction. When it returns an error
// or panics, everything is rolled back, and the error is returned as it is.
//
// A deadline of ctx ends the wait for the gate and fn; from sending COMMIT on,
// Config.CommitTimeout takes its place. A database whose host is gone without a word
// is left for the next one after the gate's timeout and 5 s, while the gate is waited
// for; what fn sends is for the deadline of its context to end.
//
// Answers: a Receipt; Replayed in it when the same attempt had committed
// before, also after a takeover. A [*RefusedError] that matches ErrStale,
// ErrConflict, ErrUnconfirmable or ErrClosed: nothing was written.
// ErrUnknownOutcome: ask again with the same position and content, or let
// [Retry] do it. ErrNotReplicated together with a Receipt. ErrHistory,
// ErrGateTimeout, ErrRolledBack, ErrMisuse, [*InvalidError], or the error of a
// statement (a [*StatementError] if it was a queued one): nothing was written.
func (f *Fences) Commit(ctx context.Context, pos Position, content Content, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	return f.commit(ctx, pos, content, f.cfg.GateTimeout, nil, fn)
}

func (f *Fences) commit(ctx context.Context, pos Position, content Content, timeout time.Duration, lease context.Context, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	if err := errors.Join(pos.validate(), content.validate(), f.notInside(ctx, "commit of", pos.Key), isFunc(fn != nil)); err != nil {
		return Receipt{}, err
	}
	s := session{f: f, gates: []Gate{{pos, content}}, timeout: timeout, lease: lease}
	receipts, err := s.commit(ctx, func(ctx context.Context, txs []Tx) error { return fn(ctx, txs[0]) })
	return f.followed(ctx, s.gates[0], receipts[0], err)
}

// session is one commit of the callback shape, through one gate or several.
// The receipts that its steps return are in the order of the gates.
type session struct {
	f       *Fences
	gates   []Gate // in the order in which they are locked
	timeout time.Duration
	lease   context.Context // nil for none

	company []*member // those whose callbacks run in the same transaction

	conn   *pgxpool.Conn // nil for none
	moved  bool          // it is not the one that the session has begun with
	queued []statement
	// appended is set where the callback has had events appended at once, and not with
	// COMMIT.
	appended bool
	close    []func() // what is called when the transaction has ended
}

// commit returns as many receipts as there are gates, with an error too.
func (s *session) commit(ctx context.Context, fn func(ctx context.Context, txs []Tx) error) ([]Receipt, error) {
	var err error
	s.conn, err = s.f.connection(ctx)
	if err != nil {
		return make([]Receipt, len(s.gates)), connectError(s.key(), err)
	}
	defer s.release() // a connection that is still in a transaction is closed by the pool
	return s.commitOn(ctx, fn)
}

// commitOn is commit on the connection that the session has.
func (s *session) commitOn(ctx context.Context, fn func(ctx context.Context, txs []Tx) error) ([]Receipt, error) {
	receipts := make([]Receipt, len(s.gates))
	defer func() {
		for _, c := range s.close {
			c()
		}
		if s.moved {
			s.release()
		}
	}()
	at, refusedAt, err := s.enter(ctx)
	if err != nil {
		s.rollback()
		return s.replayed(receipts, refusedAt, err)
	}
	failed := make([]Receipt, len(s.gates))
	for i := range failed {
		failed[i].behind = true
	}
	if err := s.run(ctx, fn); err != nil {
		s.rollback()
		return failed, typed(err)
	}
	if err := s.ended(); err != nil {
		s.rollback()
		return receipts, fmt.Errorf("fencing: commit of %q: %w", s.key(), err)
	}
	mine := len(s.queued)
	check := s.check()
	o := s.f.finish(ctx, s.conn.Conn(), s.queued, s.appended)
	s.rollback()
	if o.at == check && o.notPassed() {
		return receipts, fmt.Errorf("fencing: commit of %q: %w", s.key(), notSame(mine))
	}
	err = o.explain(s.gates[0], s.queued, 0, len(s.queued))
	switch o.fate {
	case committed, notReplicatedFate:
		for i, g := range s.gates {
			receipts[i] = Receipt{Position: g.Position, Step: g.Content.Step, CommittedAt: at[i]}
		}
		return receipts, err
	case refused, rolledBack:
		return failed, err
	}
	return receipts, err
}

// key names the commit in its errors.
func (s *session) key() string { return s.gates[0].Position.Key }

// enter begins the transaction and passes the gates, in one round trip. The
// index is of the gate that refused.
//
// How long the gate waits for its fence is for ctx to say. A server whose host is
// gone lets nobody through, and never says so: so now and then, when whoever holds
// the fence can be expected to have been ended, the question is asked anew on another
// connection. Nothing is lost by that, since nothing can be written before it is
// answered, but the place in the line.
func (s *session) enter(ctx context.Context) (at []time.Time, refusedAt int, err error) {
	for {
		asking, asked := context.WithTimeout(ctx, s.timeout+silence)
		at, refusedAt, err = s.ask(asking)
		silent := asking.Err() != nil
		asked()
		if _, unreached := errors.AsType[*unreachedError](err); !unreached || !silent || ctx.Err() != nil {
			return at, refusedAt, err
		}
		if err := s.reconnect(ctx); err != nil {
			return nil, 0, connectError(s.key(), err)
		}
	}
}

// reconnect replaces a connection that has answered nothing. It goes first: the pool
// may have no other.
func (s *session) reconnect(ctx context.Context) (err error) {
	s.rollback()
	s.release()
	s.f.distrust()
	s.conn, err = s.f.connection(ctx)
	s.moved = true
	return err
}

func (s *session) release() {
	if s.conn != nil {
		s.conn.Release()
	}
}

func (s *session) ask(ctx context.Context) (at []time.Time, refusedAt int, err error) {
	at = make([]time.Time, len(s.gates))
	b := &pgx.Batch{}
	b.Queue(s.f.sql.begin)
	passed := 0
	for i, g := range s.gates {
		e := s.f.enterStatement(g.Position, g.Content, s.timeout, &at[i])
		b.Queue(e.sql, e.args...).QueryRow(func(row pgx.Row) error {
			err := e.read(row)
			if err == nil {
				passed++
			}
			return err
		})
	}
	if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
		if refusal := translate(err); refusal != err {
			return nil, passed, s.gates[min(passed, len(s.gates)-1)].Content.recheck(refusal)
		}
		return nil, passed, &unreachedError{fmt.Sprintf("fencing: enter the gate of %q: nothing was written", s.key()), err}
	}
	return at, 0, nil
}

// replayed turns a gate's answer "replayed" into a receipt. One of several
// gates speaks only for itself, see askAll.
func (s *session) replayed(receipts []Receipt, at int, err error) ([]Receipt, error) {
	var r *RefusedError
	if !errors.As(err, &r) || r.Answer != ErrReplayed || len(s.gates) > 1 {
		return receipts, err
	}
	receipts[at] = replay(s.gates[at], r.Evidence)
	return receipts, nil
}

func replay(g Gate, e Evidence) Receipt {
	return Receipt{Position: g.Position, Step: g.Content.Step, Replayed: true, CommittedAt: e.CommittedAt, Result: e.Result}
}

// run calls fn with a context that also ends with the trust in the lease.
// A panic (or a runtime.Goexit) rolls back on its way out.
func (s *session) run(ctx context.Context, fn func(ctx context.Context, txs []Tx) error) error {
	lost := func() bool { return s.lease != nil && s.lease.Err() != nil }
	if lost() {
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", s.key(), context.Cause(s.lease))
	}
	lending := &lending{queued: &s.queued, company: s.company != nil}
	returned := false
	defer func() {
		if !returned {
			_ = lending.end()
			s.rollback()
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, over := s.enclose(ctx, lending)
	defer over()
	if s.lease != nil {
		defer context.AfterFunc(s.lease, func() { cancel(context.Cause(s.lease)) })()
	}
	txs := make([]Tx, len(s.gates))
	for i, g := range s.gates {
		t := s.f.tx(s.conn.Conn(), g, lending)
		txs[i], s.close = t, append(s.close, t.close)
	}
	err := fn(ctx, txs)
	returned = true
	refused := lending.end()
	s.appended = lending.appended.Load()
	if err == nil && refused != nil {
		err = fmt.Errorf("fencing: commit of %q: nothing was written: %w", s.key(), refused)
	}
	if lost() {
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", s.key(), errors.Join(context.Cause(s.lease), err))
	}
	return err
}

// ended says what the callback has done to the transaction, by the state that
// the server last reported.
func (s *session) ended() error {
	if s.conn.Conn().IsClosed() {
		return &wrappedError{"the connection was lost during the callback: nothing was written", ErrRolledBack, nil}
	}
	if s.conn.Conn().PgConn().IsBusy() {
		return &wrappedError{"the callback left rows open, so COMMIT could not be sent: nothing was written; close the rows", ErrMisuse, nil}
	}
	switch s.conn.Conn().PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return ErrRolledBack
	default:
		return &wrappedError{"the callback ended the transaction itself" + notWritten(len(s.queued)), ErrMisuse, nil}
	}
}

// notSame is what a callback is told that has run rollback and begin behind our
// back.
func notSame(queued int) error {
	return &wrappedError{"the callback ended the transaction and began another, of which nothing was committed" + notWritten(queued), ErrMisuse, nil}
}

// notWritten says what is lost with a transaction that was ended before COMMIT:
// a retry by itself is no remedy, since the receipt may be committed without what
// was queued.
func notWritten(queued int) string {
	if queued == 0 {
		return ": what it wrote before may be committed, and the step with it; a retry tells, as replayed"
	}
	return fmt.Sprintf(": %d queued statements (events, the result) were NOT written; what was written before may be committed, and the step with it: then a retry is answered as replayed and does not bring them, so commit them under a step of their own", queued)
}

// check has the pass looked at again with COMMIT: after rollback and begin the
// server reports an open transaction, as if nothing had been. append and
// set_result look at the pass anyway, so it costs something only where there is
// neither. It says which statement does it.
func (s *session) check() (at int) {
	for i, q := range s.queued {
		if q.sql == s.f.sql.append || q.sql == s.f.sql.setResult {
			return i
		}
	}
	s.queued = append(s.queued, statement{sql: s.f.sql.stillPassed, args: []any{s.key()}})
	return len(s.queued) - 1
}

func (s *session) rollback() {
	if s.conn != nil {
		s.f.rollback(s.conn)
	}
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

func (f *Fences) queue(p Position, step string, l *lending) *queue {
	return &queue{Pass{Schema: f.cfg.Schema, Key: p.Key, Epoch: p.Epoch, Token: p.Token, Step: step}, f, l}
}
