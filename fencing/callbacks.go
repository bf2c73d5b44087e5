package fencing

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Callbacks of a lease may share a transaction like its batches, where
// [LeaseConfig.CoalesceCallbacks] says so. They run one after the other behind
// one gate, each in the goroutine that has called Commit, so that a panic and a
// runtime.Goexit stay where they belong. Whatever goes wrong with one rolls all
// back, since a callback can have read what another has written: the others run
// again together, and the one by itself. So an error that a caller gets is
// always that of a transaction of its own.

// errInCompany is the answer to a statement that changes what those behind it
// in the transaction run under. Its commit goes alone and runs again.
var errInCompany = errors.New("fencing: a statement that changes settings shares no transaction: the callback runs again, alone")

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
	defer func() { b.ran <- err }()
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
		m.receipt, m.err = Receipt{}, m.connectError(context.Cause(m.ctx))
		return outcome{fate: committed, at: -1}, -1
	}
	s := session{f: f, gates: []Gate{m.gate}, timeout: m.timeout, lease: m.lease, conn: conn}
	receipts, err := s.commitOn(m.ctx, func(ctx context.Context, txs []Tx) error { return m.lend(ctx, txs[0]) })
	m.receipt, m.err = receipts[0], err
	return outcome{fate: committed, at: -1}, -1
}

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
	var appends appends
	first := make([]int, len(members)+1)
	for i, m := range members {
		s := session{f: f, gates: []Gate{m.gate}, timeout: m.timeout, lease: m.lease, conn: conn, company: true}
		err := s.run(m.ctx, func(ctx context.Context, txs []Tx) error {
			if err := context.Cause(ctx); err != nil { // it would break the connection for all
				return err
			}
			return m.lend(ctx, txs[0])
		})
		if err == nil {
			err = s.ended()
		}
		over = append(over, s.close...)
		if err != nil {
			m.err = &companyError{err}
			return outcome{fate: refused, at: -1, err: err}, i
		}
		first[i] = len(sent)
		s.check()
		for _, q := range s.queued {
			if !appends.take(f, q) {
				sent = append(sent, q)
			}
		}
	}
	first[len(members)] = len(sent)
	sent = append(sent, appends.statements...)
	o = f.finish(ctx, conn.Conn(), sent)
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

// enterCompany begins the transaction and passes the gate of all members, in one
// round trip. The wait for the fence ends with the context of any of them. A
// refusal of the gate is the answer of the member that it names.
func (f *Fences) enterCompany(ctx context.Context, conn *pgxpool.Conn, members []*member) (culprit int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, m := range members {
		m.receipt, m.err = Receipt{}, nil
		defer context.AfterFunc(m.ctx, cancel)()
	}
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	enter := f.enterMany(members)
	b.Queue(enter.sql, enter.args...).QueryRow(enter.read)
	err = conn.SendBatch(ctx, b).Close()
	if err == nil {
		return -1, nil
	}
	refusal := translate(err)
	r, ok := errors.AsType[*RefusedError](refusal)
	for i, m := range members {
		switch {
		case ok && r.Evidence.Step == m.gate.Content.Step && r.Answer == ErrReplayed:
			m.receipt = replay(m.gate, r.Evidence)
			return i, refusal
		case ok && r.Evidence.Step == m.gate.Content.Step:
			m.err = m.gate.Content.recheck(refusal)
			return i, refusal
		case !ok && m.ctx.Err() != nil:
			m.err = &companyError{context.Cause(m.ctx)}
			return i, refusal
		}
	}
	return -1, refusal
}
