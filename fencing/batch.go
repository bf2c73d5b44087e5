package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fenceline/fenceline/internal/sqltext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Batch collects what a commit of one round trip writes. It is no transaction:
// nothing can be read. outbox.Append takes it like one.
type Batch struct {
	q       queue
	queued  []statement
	lending lending
}

// Gate says which gate the batch will pass.
func (b *Batch) Gate() Pass { return b.q.Gate() }

// Queue adds a statement. Statements run in the order of their adding. Their
// results are not seen, and what an update found does not stop the ones behind
// it; only an error does, and it is a [*StatementError]. With a statement that
// begins or ends a transaction (ErrMisuse), or an empty one (an [*InvalidError]),
// nothing is sent. After build has returned it is too late: it is lost, and logged
// as an error.
func (b *Batch) Queue(sql string, args ...any) { b.q.Queue(sql, args...) }

// SetResult puts a small result, at most 8 KiB, into the receipt. A replay gets
// it back.
func (b *Batch) SetResult(result []byte) error { return b.q.SetResult(result) }

// CommitBatch is [Fences.Commit] in one round trip, for a commit that need not
// read anything behind the gate: BEGIN, the gate, what build has queued, and
// COMMIT are sent together. build runs once, before anything is sent, and only
// fills the batch; when it returns an error, that is the answer.
//
// A deadline of ctx ends the wait for a connection, and for others of this
// process that commit under the key: they follow each other on one connection, and
// the next one is sent while one is under way. The batch contains COMMIT, so from
// sending it on Config.CommitTimeout takes the deadline's place, from when the one
// before is answered; a wait for the fence is part of that. A connection that is
// lost leaves the outcome of both unknown. Where the pool's connections don't keep
// prepared statements (default_query_exec_mode), a tracer is to be told of each
// batch, or hooks of the pool prepare a connection for whom it is taken, each takes
// a connection for itself, two of a key at a time. Answers are Commit's.
func (f *Fences) CommitBatch(ctx context.Context, pos Position, content Content, build func(b *Batch) error) (Receipt, error) {
	if err := f.notInside(ctx, "commit of", pos.Key); err != nil {
		return Receipt{}, err
	}
	m, err := f.member(pos, content, f.cfg.GateTimeout, build)
	if err != nil {
		return Receipt{}, err
	}
	var receipt Receipt
	if f.group != nil {
		receipt, err = f.group.join(ctx, m)
	} else {
		receipt, err = f.inTurn(ctx, m)
	}
	return f.followed(ctx, m.gate, receipt, err)
}

// member is one commit of the batch shape: alone in its transaction, or with
// others of its lease.
type member struct {
	gate    Gate
	timeout time.Duration
	most    int // how many of its position a transaction may have
	batch   *Batch

	fn    func(ctx context.Context, tx Tx) error // of the callback shape, which has no batch
	lease context.Context                        // whose trust ends the callback
	baton chan baton                             // has it run

	ctx       context.Context
	tries     int           // in company
	alone     bool          // goes without company
	replanned bool          // has met a statement that was not prepared any more
	done      chan struct{} // closed when the answer is there

	single chan struct{} // closed when it is to go alone, by its caller

	gone bool // the callback has panicked: nobody waits for the answer

	at       time.Time
	receipt  Receipt
	err      error
	panicked any
}

func (f *Fences) member(pos Position, content Content, timeout time.Duration, build func(b *Batch) error) (*member, error) {
	if err := errors.Join(pos.validate(), content.validate(), isFunc(build != nil)); err != nil {
		return nil, err
	}
	b := &Batch{}
	b.lending.queued = &b.queued
	b.q = *f.queue(pos, content.Step, &b.lending)
	if err := b.build(build); err != nil {
		return nil, err
	}
	m := &member{gate: Gate{pos, content}, timeout: timeout, most: groupMembers, batch: b, done: make(chan struct{}), single: make(chan struct{})}
	m.alone = slices.ContainsFunc(b.queued, func(s statement) bool { return sqltext.ChangesSettings(s.sql) })
	return m, nil
}

func (b *Batch) build(build func(b *Batch) error) error {
	defer func() { _ = b.lending.end() }() // also behind a panic
	err := build(b)
	if refused := b.lending.end(); err == nil && refused != nil {
		return fmt.Errorf("fencing: commit of %q: nothing was sent: %w", b.q.pass.Key, refused)
	}
	return err
}

func (m *member) connectError(err error) error {
	return connectError(m.gate.Position.Key, err)
}

// waitError is that of one who did not come to its turn.
func (m *member) waitError(err error) error {
	return &unreachedError{fmt.Sprintf("fencing: commit of %q: nothing was written: wait for the commits of this process before it", m.gate.Position.Key), err}
}

// gateAt is where the gate is among the statements: behind BEGIN.
const gateAt = 1

// packet is the transaction of some members, as it is sent.
type packet struct {
	members    []*member
	statements []statement // without COMMIT
	first      []int       // of each member's queued statements, and where the last one's end
	along      int         // which statement of the one member goes with the gate; -1 for none
	texts      []string    // the statements as they were sent through a pipe
	behind     bool        // another one, on the same connection
	unsent     bool        // nothing of it has left
}

func (f *Fences) pack(members []*member) *packet {
	p := &packet{members: members, first: make([]int, len(members)+1), along: -1}
	sent := []statement{{sql: f.sql.begin}}
	together := len(members) > 1
	appends := appends{group: mixed(members)}
	if together {
		sent = append(sent, f.enterStatementFor(members))
	}
	for i, m := range members {
		if !together {
			enter := f.enterStatement(m.gate.Position, m.gate.Content, m.timeout, &m.at)
			queued := m.batch.queued
			if at, event := f.along(queued); at >= 0 {
				p.along, queued = at, slices.Delete(slices.Clone(queued), at, at+1)
				enter.sql, enter.args = f.sql.enterOne, append(enter.args, event...)
			}
			sent = append(sent, enter)
			p.first[i] = len(sent)
			sent = append(sent, queued...)
			continue
		}
		p.first[i] = len(sent)
		for _, s := range m.batch.queued {
			if !appends.take(f, s) {
				sent = append(sent, s)
			}
		}
	}
	p.first[len(members)] = len(sent)
	p.statements = append(sent, appends.sent(f)...)
	return p
}

// commitMembers commits the members in one transaction and one round trip. With
// its answer each has its receipt or error, but the second result says whether
// the error is one of a single member, whose index it gives, and is such that
// the others have none: then nothing is written.
func (f *Fences) commitMembers(ctx context.Context, conn *pgxpool.Conn, members []*member) (o outcome, culprit int) {
	p := f.pack(members)
	o = f.finish(ctx, conn.Conn(), p.statements, false)
	f.rollback(conn)
	return o, f.unpack(p, o)
}

// unpack gives each member its receipt or error, and the index of the culprit.
func (f *Fences) unpack(p *packet, o outcome) (culprit int) {
	if o.at == gateAt {
		notTogether(p.members, o.err)
	}
	culprit = -1
	for i, m := range p.members {
		first, end := p.first[i], p.first[i+1]
		m.receipt = Receipt{}
		m.err = o.explain(m.gate, p.statements, first, end)
		if p.along >= 0 {
			m.err = f.tookAlong(p.along, o, m.gate.Position.Key, m.err)
		}
		if o.at >= first && o.at < end || o.at == gateAt && m.isRefused() {
			culprit = i
		}
		switch o.fate {
		case committed, notReplicatedFate:
			m.receipt = Receipt{Position: m.gate.Position, Step: m.gate.Content.Step, CommittedAt: m.at}
		case refused:
			var r *RefusedError
			if o.at == gateAt && errors.As(m.err, &r) && r.Answer == ErrReplayed { // the gate's, and nobody else's
				m.receipt, m.err = replay(m.gate, r.Evidence), nil
			}
		}
	}
	return culprit
}

// isRefused says that a refusal of the gate of several members is this one's:
// the evidence names the step.
func (m *member) isRefused() bool {
	r, ok := errors.AsType[*RefusedError](m.err)
	return ok && r.Evidence.Step == m.gate.Content.Step
}

// enterStatementFor is the gate of several members.
func (f *Fences) enterStatementFor(members []*member) statement {
	if mixed(members) {
		return f.enterGroup(members)
	}
	return f.enterMany(members)
}

// enterMany is the gate of several members, all of one position.
func (f *Fences) enterMany(members []*member) statement {
	p := members[0].gate.Position
	steps, algorithms, digests := contents(members)
	return statement{
		sql:  f.sql.enterMany,
		args: []any{p.Key, p.Epoch, p.Token, steps, algorithms, digests, shortest(members)},
		read: passedAt(members),
	}
}

// contents are what members commit, as columns.
func contents(members []*member) (steps, algorithms []string, digests [][]byte) {
	for _, m := range members {
		algorithm, digest := m.gate.Content.sum()
		steps, algorithms, digests = append(steps, m.gate.Content.Step), append(algorithms, algorithm), append(digests, digest)
	}
	return steps, algorithms, digests
}

// passedAt takes the time at which members have passed their gate together.
func passedAt(members []*member) func(pgx.Row) error {
	return func(row pgx.Row) error {
		var at time.Time
		err := row.Scan(&at)
		for _, m := range members {
			m.at = at
		}
		return err
	}
}

// definite says that a refusal of the gate is an answer for that commit,
// whatever else was in the transaction: receipts that others of it have written
// are of other steps.
func definite(err error) bool {
	return gateRefusal(err) != nil
}
