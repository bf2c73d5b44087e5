package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Callbacks of a lease may share a transaction like its batches, where
// [LeaseConfig.CoalesceCallbacks] says so. They run one after the other behind
// one gate, each in the goroutine that has called Commit, so that a panic and a
// runtime.Goexit stay where they belong. Whatever goes wrong with one rolls all
// back, since a callback can have read what another has written: the others run
// again together, and the one by itself. So an error that a caller gets is
// always that of a transaction of its own.

// errInCompany is the answer to what a callback may do in a transaction of its
// own only: a statement that changes what those behind it run under, the use of the
// connection itself, and what would wait for another one in the transaction. It runs
// again, alone.
var errInCompany = errors.New("fencing: who changes settings, takes the connection or waits for another commit of the transaction shares none: the callback runs again, alone")

// errSlowCompany is of a company that took too long; nobody is told.
var errSlowCompany = errors.New("fencing: the callbacks take too long to share a transaction: they run again, alone")

// errGone is what is left of a callback that has panicked or ended its goroutine.
var errGone = errors.New("fencing: the callback has not returned")

// companyError is what went wrong with a member in company. Nobody is told: its
// answer is that of a transaction of its own. It has no Unwrap, so that an error
// of the callback's isn't taken for one of the gate's.
type companyError struct{ cause error }

func (e *companyError) Error() string { return "fencing: in company: " + e.cause.Error() }

// baton lets a member's callback run.
type baton struct {
	ctx context.Context
	tx  Tx
	ran chan error
}

// play runs the callback, in the goroutine that has called Commit.
func (m *member) play(b baton) {
	err := errGone
	defer func() {
		p := recover()
		if p == errInCompany { // Conn's own, to get out of the callback
			err, p = errInCompany, nil
		}
		b.ran <- err
		if p != nil {
			panic(p)
		}
	}()
	err = m.fn(b.ctx, b.tx)
}

// lend has the callback run, and waits for it.
func (m *member) lend(ctx context.Context, tx Tx) error {
	b := baton{ctx, tx, make(chan error, 1)}
	m.baton <- b
	err := <-b.ran
	m.gone = errors.Is(err, errGone)
	return err
}

// commitCallbacks is commitMembers for the callback shape.
func (f *Fences) commitCallbacks(ctx context.Context, conn *pgxpool.Conn, members []*member) (o outcome, culprit int) {
	if len(members) > 1 {
		return f.commitCompany(ctx, conn, members)
	}
	m := members[0]
	if m.ctx.Err() != nil { // since it was taken out of the line
		m.receipt, m.err = Receipt{}, m.waitError(context.Cause(m.ctx))
		return outcome{fate: committed, at: -1}, -1
	}
	s := session{f: f, gates: []Gate{m.gate}, timeout: m.timeout, lease: m.lease, conn: conn}
	receipts, err := s.commitOn(m.ctx, func(ctx context.Context, txs []Tx) error { return m.lend(ctx, txs[0]) })
	m.receipt, m.err = receipts[0], err
	return outcome{fate: committed, at: -1}, -1
}

// companyTime is the part of the gate's timeout (the shortest one, of leases that
// differ) within which the callbacks of a company must be done. It bounds how long a takeover waits for them, which for
// one callback is a matter of how long it idles: slow ones go alone.
const companyTime = 4

// commitCompany runs the callbacks of several members and commits them together.
// If one fails nothing is written, and the second result says which.
func (f *Fences) commitCompany(ctx context.Context, conn *pgxpool.Conn, members []*member) (o outcome, culprit int) {
	var over []func() // what is called when the transaction has ended
	defer func() {
		f.rollback(conn)
		for _, c := range over {
			c()
		}
	}()
	if at, err := f.enterCompany(ctx, conn, members); err != nil {
		return outcome{fate: refused, at: -1, err: err}, at
	}
	var sent []statement
	appended := false
	appends := appends{group: mixed(members)}
	first := make([]int, len(members)+1)
	// The receipts of all were in a transaction that was ended in their midst, and
	// may be committed; so nobody is asked again, which would be answered as
	// replayed and bring nothing that was queued.
	torn := func(err error) (outcome, int) {
		for _, m := range members {
			m.receipt, m.err = Receipt{}, &wrappedError{fmt.Sprintf("fencing: commit of %q step %q: a callback that shared the transaction (CoalesceCallbacks) ended it: what was queued (events, the result) was NOT written; what was written before may be committed, and the step with it: then a retry is answered as replayed and does not bring the rest, so commit that under a step of its own", m.gate.Position.Key, m.gate.Content.Step), ErrMisuse, err}
		}
		return outcome{fate: ended, at: -1, err: err}, -1
	}
	var checks []int // which of sent look at the pass
	passed, limit := time.Now(), shortest(members)/companyTime
	for i, m := range members {
		if time.Since(passed) > limit {
			for _, m := range members {
				m.alone = true
			}
			return outcome{fate: refused, at: -1, err: errSlowCompany}, -1
		}
		s := session{f: f, gates: []Gate{m.gate}, timeout: m.timeout, lease: m.lease, conn: conn, company: members}
		err := s.run(m.ctx, func(ctx context.Context, txs []Tx) error {
			if err := context.Cause(ctx); err != nil { // it would break the connection for all
				return err
			}
			return m.lend(ctx, txs[0])
		})
		if err == nil {
			err = s.ended()
		}
		if err == nil && i < len(members)-1 {
			err = s.flush(m.ctx)
		}
		over, appended = append(over, s.close...), appended || s.appended
		if status := conn.Conn().PgConn().TxStatus(); err != nil && status != 'T' && status != 'E' && !conn.Conn().IsClosed() || errors.Is(err, errTorn) {
			return torn(err)
		}
		if err != nil {
			m.err = &companyError{err}
			return outcome{fate: refused, at: -1, err: err}, i
		}
		first[i] = len(sent)
		check := s.check()
		for j, q := range s.queued {
			if appends.take(f, q) {
				continue
			}
			if j == check {
				checks = append(checks, len(sent))
			}
			sent = append(sent, q)
		}
	}
	first[len(members)] = len(sent)
	sent = append(sent, appends.sent(f)...)
	o = f.finish(ctx, conn.Conn(), sent, appended)
	if o.notPassed() && (slices.Contains(checks, o.at) || o.at >= first[len(members)]) {
		return torn(o.err)
	}
	culprit = -1
	for i, m := range members {
		m.err = o.explain(m.gate, sent, first[i], first[i+1])
		if o.fate == committed || o.fate == notReplicatedFate {
			m.receipt = Receipt{Position: m.gate.Position, Step: m.gate.Content.Step, CommittedAt: m.at}
		}
		if o.at >= first[i] && o.at < first[i+1] {
			culprit = i
		}
	}
	return o, culprit
}

// flush sends what a callback has queued before the next one begins, which sees what
// those before it have written: in a transaction of its own it would, since the fence
// lets nobody in before COMMIT. Left until then, a queued write would come behind
// what the next callback has made of the rows as they were. Events and the result
// wait: no login can tell. It takes no longer than COMMIT may, in which it would
// have gone along.
func (s *session) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.f.cfg.CommitTimeout)
	defer cancel()
	b := &pgx.Batch{}
	var ended error
	s.queued = slices.DeleteFunc(s.queued, func(q statement) bool {
		if q.sql == s.f.sql.append || q.sql == s.f.sql.setResult {
			return false
		}
		b.Queue(q.sql, q.args...).Exec(func(c pgconn.CommandTag) error {
			if endsTransaction(c) && ended == nil {
				ended = errTorn
			}
			return nil
		})
		return true
	})
	if b.Len() == 0 {
		return nil
	}
	if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	return ended
}

// errTorn: a statement of a company has ended its transaction.
var errTorn = errors.New("fencing: a queued statement ended the transaction")

// enterCompany begins the transaction and passes the gate of all members, in one
// round trip. The wait for the fence ends with the context of any of them. A
// refusal of the gate is the answer of the member that it names.
func (f *Fences) enterCompany(ctx context.Context, conn *pgxpool.Conn, members []*member) (culprit int, err error) {
	// As at a session's gate: then it is tried again, on another connection.
	ctx, cancel := context.WithTimeout(ctx, shortest(members)+silence)
	defer cancel()
	for _, m := range members {
		m.receipt, m.err = Receipt{}, nil
		defer context.AfterFunc(m.ctx, cancel)()
	}
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	enter := f.enterStatementFor(members)
	b.Queue(enter.sql, enter.args...).QueryRow(enter.read)
	err = conn.SendBatch(ctx, b).Close()
	if err == nil {
		return -1, nil
	}
	notTogether(members, err)
	refusal := translate(err)
	r, ok := errors.AsType[*RefusedError](refusal)
	for i, m := range members {
		switch {
		case ok && r.Evidence.Step == m.gate.Content.Step:
			// It may turn out to be a replay only now: of an attempt that was made with
			// another algorithm.
			if m.err = m.gate.Content.recheck(refusal); errors.Is(m.err, ErrReplayed) {
				m.receipt, m.err = replay(m.gate, r.Evidence), nil
			}
			return i, refusal
		case !ok && m.ctx.Err() != nil:
			m.err = &companyError{context.Cause(m.ctx)}
			return i, refusal
		}
	}
	return -1, refusal
}
