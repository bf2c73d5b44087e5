package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// statement is one that travels with COMMIT.
type statement struct {
	sql  string
	args []any
	read func(pgx.Row) error // what to do with its one row; nil for none
}

// outcome is what became of a transaction whose COMMIT was sent.
type outcome struct {
	fate fate
	// at is the index of the statement that failed; -1 where it is not one of
	// them, or where nothing says which.
	at  int
	err error // the database's or the driver's; nil if fate needs none
}

type fate int

const (
	committed fate = iota
	notReplicatedFate
	rolledBack // COMMIT was answered with ROLLBACK
	refused    // an error came before COMMIT, or COMMIT was not sent: nothing was written
	ended      // one of the statements has ended the transaction: what is written is for a retry to tell
	unknown
)

// finish sends statements, with COMMIT as the last one, in one round trip. The
// caller's deadline does not reach it: a COMMIT that is cancelled may still
// happen. Of ctx only the values are used. appended says that there are events in the
// transaction already.
func (f *Fences) finish(ctx context.Context, conn *pgx.Conn, statements []statement, appended bool) outcome {
	o := f.send(ctx, conn, statements)
	f.announce(o, statements, appended)
	return o
}

// announce tells of events that are, or may be, committed. Never before: NOTIFY in
// the transaction itself would have the commits of the whole server queue up.
func (f *Fences) announce(o outcome, statements []statement, appended bool) {
	if f.cfg.Wake == nil || o.fate == refused || o.fate == rolledBack {
		return
	}
	for _, s := range statements {
		switch s.sql {
		case f.sql.append, f.sql.appendGroup, f.sql.enterOne: // the last takes an event along
			appended = true
		}
	}
	if appended {
		f.cfg.Wake()
	}
}

func (f *Fences) send(ctx context.Context, conn *pgx.Conn, statements []statement) outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.CommitTimeout)
	defer cancel()
	forgetNotice(conn.PgConn())
	b := &pgx.Batch{}
	r := reading{ender: -1}
	for i, s := range statements {
		q := b.Queue(s.sql, s.args...)
		if s.read == nil {
			q.Exec(func(c pgconn.CommandTag) error {
				r.executed(i, c)
				return nil
			})
			continue
		}
		q.QueryRow(func(row pgx.Row) error {
			err := s.read(row)
			if err == nil {
				r.done++
			}
			return err
		})
	}
	b.Queue(f.sql.commit).Exec(func(c pgconn.CommandTag) error { r.tag = c.String(); return nil })
	err := conn.SendBatch(ctx, b).Close()
	return r.outcome(conn, statements, err, notSent(conn, err))
}

// reading is what was answered to the statements of one transaction.
type reading struct {
	done  int    // statements that were executed
	ender int    // the first of them that has ended the transaction; -1 for none
	tag   string // the answer to COMMIT
}

// executed counts a statement that gives nothing to read.
func (r *reading) executed(i int, c pgconn.CommandTag) {
	r.done++
	if i > 0 && endsTransaction(c) && r.ender < 0 {
		r.ender = i
	}
}

// outcome says what became of the transaction. notSent is whether COMMIT did not
// leave, where err is not of the server.
func (r *reading) outcome(conn *pgx.Conn, statements []statement, err error, notSent bool) outcome {
	o := outcome{at: -1, err: err}
	if e, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok {
		o.at = only(statements, e.SQL())
	} else if answeredByServer(err) && r.done < len(statements) {
		o.at = r.done
	}
	switch {
	case r.ender >= 0:
		o = outcome{ended, r.ender, err}
	// Its answer is here, whatever became of the connection behind it.
	case r.tag == "COMMIT":
		o = outcome{at: -1}
		if notReplicated(conn.PgConn()) {
			o.fate = notReplicatedFate
		}
	case r.tag == "ROLLBACK": // the server's answer to COMMIT of a failed transaction
		o.fate = rolledBack
	case answeredByServer(err), notSent:
		o.fate = refused
	default:
		// A lost connection, a time-out, or a session that was ended while it
		// waited for its standby: COMMIT may have happened.
		o.fate, o.at = unknown, -1
	}
	return o
}

// endsTransaction says that a queued statement was one of those that begin or
// end transactions: the gate and the rest are then in different ones. The
// server's own word for it is the only one that cannot be dressed up. Nobody
// needs savepoints where nothing can react to an error.
func endsTransaction(c pgconn.CommandTag) bool {
	switch c.String() {
	case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		return true
	}
	return false
}

// answeredByServer says that the server refused, so that nothing was written:
// an error of one of the statements, or of a deferred constraint, and its own. 25P03 ends
// only idle sessions, which had not received COMMIT.
func answeredByServer(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (!fatal(pg) || pg.Code == "25P03")
}

// notSent says that COMMIT did not leave: an argument that could not be
// encoded, a statement that could not be prepared before. A connection that
// still lives is one on which every answer has been read; that of COMMIT would
// have been among them.
func notSent(conn *pgx.Conn, err error) bool {
	if _, early := errors.AsType[pgx.ErrPreprocessingBatch](err); early || pgconn.SafeToRetry(err) {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && foreign(pg) {
		return false // it stands in the place of an answer
	}
	return !conn.IsClosed() && !conn.PgConn().IsBusy()
}

// only is the one statement with this text; -1 if there are several.
func only(statements []statement, sql string) int {
	at := -1
	for i, s := range statements {
		if s.sql != sql {
			continue
		}
		if at >= 0 {
			return -1
		}
		at = i
	}
	return at
}

// code is the SQLSTATE of the server's answer; empty if it is none.
func code(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	return pg.Code
}

// StatementError says which of the statements that travelled with COMMIT has
// failed. Nothing was written.
type StatementError struct {
	// Index counts the calls of Queue, SetResult and, with one call for each
	// topic, outbox.Append, from 0.
	Index int
	// SQL is its text.
	SQL string
	// Err is the database's error, or one of this package where the statement met
	// one of its functions or triggers: ErrNoPass of a protected table, say.
	Err error
}

// Error names the statement.
func (e *StatementError) Error() string {
	sql := e.SQL
	if len(sql) > 80 {
		sql = sql[:80] + "…"
	}
	return fmt.Sprintf("statement %d (%s): %v", e.Index, sql, e.Err)
}

// Unwrap gives the database's error.
func (e *StatementError) Unwrap() error { return e.Err }

// notPassed says that the statement that failed, if it looked at the pass, has
// found none: the transaction is not the one in which the gate was passed.
func (o outcome) notPassed() bool {
	return o.fate == refused && slices.Contains([]string{"22012", "FL007"}, code(o.err))
}

// explain turns an outcome into the error of one commit that was part of it.
// own is where this commit's own queued statements begin and end among those
// that were sent.
func (o outcome) explain(g Gate, sent []statement, first, end int) error {
	key, step := g.Position.Key, g.Content.Step
	switch o.fate {
	case committed:
		return nil
	case notReplicatedFate:
		return fmt.Errorf("fencing: commit of %q step %q: %w", key, step, ErrNotReplicated)
	case rolledBack:
		return fmt.Errorf("fencing: commit of %q: %w", key, ErrRolledBack)
	case ended:
		if o.at >= first && o.at < end {
			return &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: the queued statement %q ended the transaction: what was queued behind it (events too) was NOT written; what was before it may be committed, and the step with it: then a retry is answered as replayed and does not bring the rest, so commit that under a step of its own", key, step, sent[o.at].sql), ErrMisuse, nil}
		}
		return &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: %v (a statement of another commit in the same transaction has ended it)", key, step, ErrUnknownOutcome), ErrUnknownOutcome, nil}
	case unknown:
		return &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: %v (%v)", key, step, ErrUnknownOutcome, o.err), ErrUnknownOutcome, o.err}
	}
	err := o.err
	if code(err) == "25P03" { // ended while it was idle: no statement is to blame, though one of them has met it
		return &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: nothing was written: %v; a retry with the same token tells where the fence is", key, step, ErrGateTimeout), ErrGateTimeout, err}
	}
	if o.at >= first && o.at < end {
		// Also where it met one of our functions or triggers: what that has
		// refused is the statement, and not this commit.
		err = &StatementError{o.at - first, sent[o.at].sql, translate(err)}
	} else if refusal := translate(err); refusal != err {
		return g.Content.recheck(refusal)
	}
	return fmt.Errorf("fencing: commit of %q: nothing was written: %w", key, err)
}

// enterStatement is the gate, as one of the statements.
func (f *Fences) enterStatement(p Position, c Content, timeout time.Duration, at *time.Time) statement {
	algorithm, digest := c.sum()
	return statement{
		sql:  f.sql.enter,
		args: []any{p.Key, p.Epoch, p.Token, c.Step, algorithm, digest, timeout},
		read: func(row pgx.Row) error { return row.Scan(at) },
	}
}
