package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	closeSQL = "select @schema@.close($1, $2, $3, $4)"
	openSQL  = "select epoch, opened from @schema@.open($1, $2)"
)

// Closing is the answer to a close that has happened.
type Closing struct {
	// Position is under which the life was closed.
	Position Position
	// ClosedAt is when, on the database's clock.
	ClosedAt time.Time
	// Replayed says that an earlier call had closed it.
	Replayed bool
}

// Close ends the life of a key that pos is of: the key's tombstone stays, its
// lease ends, and each stream of the key gets an end record as its last one.
// From its return on every commit under the key is answered ErrClosed, until
// [Fences.Open] begins the next life; and then ErrStale. What has committed is
// still answered by its receipt. (It closes a key, not f, which needs no
// closing.)
//
// Close can be called again after its answer was lost, also by another process
// and after the key was opened again. It waits for a commit in progress, whose
// events then come before the end records. A deadline of ctx ends only the wait
// for a connection; from then on Config.CommitTimeout takes its place.
//
// Answers are those of [Fences.Commit]: ErrStale when somebody has taken over,
// ErrClosed when somebody else has closed this life, ErrUnconfirmable,
// ErrUnknownOutcome, ErrNotReplicated together with a Closing, ErrHistory.
func (f *Fences) Close(ctx context.Context, pos Position) (Closing, error) {
	return f.close(ctx, pos, f.cfg.GateTimeout)
}

// Close is [Fences.Close] under this lease, whose commits in progress it waits
// for: for longer than the gate's timeout with none ended is a [*BlockedError],
// and in the callback of one of them ErrMisuse. When the key is closed, the
// lease's context ends, with ErrClosed as its cause.
func (l *Lease) Close(ctx context.Context) (Closing, error) {
	if err := l.f.notInside(ctx, "close", l.key()); err != nil {
		return Closing{}, err
	}
	// With no commit and no rotation of this handle under way: the token that is
	// presented is then the lease's newest. Of a lease that has ended the last
	// one asks, which may have closed the key before.
	d, err := l.drain(ctx)
	if err == nil {
		defer l.resume(d, nil)
	} else if l.ctx.Err() == nil {
		return Closing{}, fmt.Errorf("fencing: close %q: waiting for its commits in progress: %w", l.key(), err)
	}
	c, err := l.f.close(ctx, l.Position(), l.cfg.GateTimeout)
	if err == nil || errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrClosed) {
		l.end(ErrClosed)
	}
	return c, err
}

func (f *Fences) close(ctx context.Context, pos Position, timeout time.Duration) (Closing, error) {
	if err := errors.Join(pos.validate(), f.notInside(ctx, "close", pos.Key)); err != nil {
		return Closing{}, err
	}
	c := Closing{Position: pos}
	err := f.settle(ctx, "close", pos.Key, func(row pgx.Row) error { return row.Scan(&c.ClosedAt) }, closeSQL, pos.Key, pos.Epoch, pos.Token, timeout)
	var r *RefusedError
	switch {
	case errors.As(err, &r) && r.Answer == ErrReplayed:
		// Visible, and perhaps on the primary alone.
		if err = f.replicated(ctx, fmt.Sprintf("close %q", pos.Key)); err != nil && !errors.Is(err, ErrNotReplicated) {
			return Closing{}, err
		}
		c.ClosedAt, c.Replayed = r.Evidence.CommittedAt, true
		return c, err
	case err != nil && !errors.Is(err, ErrNotReplicated):
		return Closing{}, err
	}
	if f.cfg.Wake != nil {
		f.cfg.Wake() // for the end records
	}
	return c, err
}

// Open begins the next life of a key that was closed, under a larger epoch, and
// returns that epoch; of a key that is open it returns the epoch there is. A key
// that was never used, or whose tombstone was swept, needs no Open: Acquire
// begins its life. seq starts again at 1 in each stream, and what was asked for
// under the old life is refused.
//
// Open gives no right to commit: Acquire does. It can be called again after its
// answer was lost. Errors: [*BlockedError], ErrUnknownOutcome, ErrHistory,
// ErrNotReplicated together with the epoch, [*InvalidError].
func (f *Fences) Open(ctx context.Context, key string) (epoch int64, err error) {
	if err := errors.Join(validateKey(key), f.notInside(ctx, "open", key)); err != nil {
		return 0, err
	}
	var opened bool
	err = f.settle(ctx, "open", key, func(row pgx.Row) error { return row.Scan(&epoch, &opened) }, openSQL, key, 5*time.Second)
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		return 0, err
	}
	return epoch, err
}

// settle runs one statement that changes the life of a key, in one round trip
// with BEGIN and COMMIT. Like a commit it is not cancelled by the caller's
// deadline once it was sent; since it can be repeated, it is tried a second time
// when its answer is lost.
func (f *Fences) settle(ctx context.Context, what, key string, read func(pgx.Row) error, sql string, args ...any) error {
	var err error
	lost := false // the answer to an earlier attempt
	for range 2 {
		err = f.settleOnce(ctx, read, schema.Expand(sql, f.cfg.Schema), args...)
		if err == nil || errors.Is(err, ErrNotReplicated) || answered(err) || ctx.Err() != nil {
			break
		}
		lost = lost || !errors.Is(err, errNotSent)
	}
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	// A refusal by the fence answers for both. Anything else that keeps the second
	// attempt from its answer says nothing of the first.
	case lost && gateRefusal(translate(err)) == nil && !errors.Is(err, ErrNotReplicated):
	case errors.Is(err, errNotSent), errors.As(err, &pg) && !fatal(pg):
		if t := translate(err); t != err {
			return t
		}
		return fmt.Errorf("fencing: %s %q: nothing was changed: %w", what, key, err)
	case errors.Is(err, ErrNotReplicated):
		return fmt.Errorf("fencing: %s %q: %w", what, key, err)
	}
	return &wrappedError{fmt.Sprintf("fencing: %s %q: unknown outcome, call it again: %v", what, key, err), ErrUnknownOutcome, translate(err)}
}

// errNotSent marks an attempt that never reached the server.
var errNotSent = errors.New("no connection")

func (f *Fences) settleOnce(ctx context.Context, read func(pgx.Row) error, sql string, args ...any) error {
	conn, err := f.connection(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.CommitTimeout)
	defer cancel()
	forgetNotice(conn.Conn().PgConn())
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	b.Queue(patientSQL)
	b.Queue(sql, args...).QueryRow(read)
	b.Queue(f.sql.commit)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		f.rollback(conn)
		return err
	}
	if notReplicated(conn.Conn().PgConn()) {
		return ErrNotReplicated
	}
	return nil
}
