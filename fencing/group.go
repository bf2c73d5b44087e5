package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Commits of different keys may share transactions too, where [Config.GroupCommit]
// says so: most of what a small commit costs is the setting up of statements, and
// the flush. All keys have one line then, with as many lanes as the option says.
//
// The gate of a group never waits for a fence. Whoever can't pass at once (a
// takeover or another process's commit is under way, the step has committed
// before, the position is stale) is told to go by itself, and the others go again
// without it. So no key waits for what happens to another one, no answer depends
// on the company, and fences can't be part of a deadlock. A key is in one
// transaction of the line at a time: lanes would meet at its fence otherwise.
const (
	// groupMembers bounds how many commits a group has. What they lock is locked
	// until all are done.
	groupMembers = 64
	// maxGroupCommit bounds the lanes: each has a connection.
	maxGroupCommit = 64
	// laneTime is after what time a transaction does not count as one of the lanes
	// any more: it is held up by something of its own (its fence's lock, a slow
	// callback), which is no reason for other keys to wait.
	laneTime = 50 * time.Millisecond
	// maxSlow bounds how many such there are at a time.
	maxSlow = 64
)

func (f *Fences) newGroup(send func(ctx context.Context, conn *pgxpool.Conn, members []*member) (outcome, int)) *line {
	q := newLine(f, f.cfg.GroupCommit, groupMembers, send)
	q.shared = true
	return q
}

// lines are those in which a lease's commits wait, by shape. There is none for
// batches that share neither a transaction nor a connection: a lane would take its
// connection with the context of whoever was first, for which a hook of the pool's may
// have prepared it, though another one commits on it in the end.
func (f *Fences) lines(cfg LeaseConfig) (batches, calls *line) {
	switch batches = f.group; {
	case cfg.Coalesce == 1 && !f.piped:
		batches = nil
	case batches == nil || cfg.Coalesce == 1:
		batches = f.ownLine(cfg.Coalesce)
	}
	if cfg.CoalesceCallbacks == 1 {
		return batches, nil
	}
	if calls = f.groupCalls; calls == nil || cfg.Coalesce == 1 {
		calls = newLine(f, 1, cfg.CoalesceCallbacks, f.commitCallbacks)
	}
	return batches, calls
}

// join is commit for a member that may have to go alone. So does what is committed
// in the callback of another commit: that one's transaction would wait for a line,
// whose transactions may wait for that one, with no timeout of the database's to
// end it. At a fence there is one.
func (q *line) join(ctx context.Context, m *member) (Receipt, error) {
	if q.shared && m.alone || q.f.running(ctx) != nil {
		return q.f.byItself(ctx, m)
	}
	return q.commit(ctx, m)
}

// byItself commits a member that shares no transaction with others, in its
// caller's goroutine and beside the lanes, which it would hold up where it waits
// for its fence.
func (f *Fences) byItself(ctx context.Context, m *member) (Receipt, error) {
	m.receipt, m.err = Receipt{}, nil
	if m.batch != nil {
		return f.inTurn(ctx, m)
	}
	s := session{f: f, gates: []Gate{m.gate}, timeout: m.timeout, lease: m.lease}
	receipts, err := s.commit(ctx, func(ctx context.Context, txs []Tx) error { return m.fn(ctx, txs[0]) })
	return receipts[0], err
}

// mixed says that members are not all of one position.
func mixed(members []*member) bool {
	for _, m := range members[1:] {
		if m.gate.Position != members[0].gate.Position {
			return true
		}
	}
	return false
}

// enterGroup is the gate of members of several keys.
func (f *Fences) enterGroup(members []*member) statement {
	var keys []string
	var epochs, tokens []int64
	for _, m := range members {
		p := m.gate.Position
		keys, epochs, tokens = append(keys, p.Key), append(epochs, p.Epoch), append(tokens, p.Token)
	}
	steps, algorithms, digests := contents(members)
	return statement{
		sql:  f.sql.enterGroup,
		args: []any{keys, epochs, tokens, steps, algorithms, digests, shortest(members)},
		read: passedAt(members),
	}
}

// shortest is the gate's timeout of members that share a transaction: each may
// count on its own for a takeover, and whoever needs longer goes alone.
func shortest(members []*member) time.Duration {
	d := members[0].timeout
	for _, m := range members[1:] {
		d = min(d, m.timeout)
	}
	return d
}

// notTogether marks the members that the gate of a group has not let pass: they
// go alone, to be answered. Any other error marks nobody.
func notTogether(members []*member, err error) {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "FL013" {
		return
	}
	var alone []int
	_ = json.Unmarshal([]byte(pg.Detail), &alone) // ours; with an error nobody is marked, and all go alone after some tries
	for _, i := range alone {
		if i < len(members) {
			members[i].alone = true
		}
	}
}

// appendGroup appends the events of several keys' commits.
func (f *Fences) appendGroup(calls []*gate.Append) statement {
	var (
		keys, steps, topics, aggregates, types, sources []string
		epochs, tokens                                  []int64
		ids                                             []pgtype.UUID
		subjects, contentTypes, headers                 []*string
		payloads                                        [][]byte
		only                                            []bool // its stream's only one, which costs less
	)
	type stream struct{ topic, key string }
	events := map[stream]int{}
	for _, c := range calls {
		events[stream{c.Topic, c.Pass.Key}] += len(c.IDs)
	}
	for _, c := range calls {
		for range c.IDs {
			keys, epochs, tokens, steps, topics = append(keys, c.Pass.Key), append(epochs, c.Pass.Epoch), append(tokens, c.Pass.Token), append(steps, c.Pass.Step), append(topics, c.Topic)
			only = append(only, events[stream{c.Topic, c.Pass.Key}] == 1)
		}
		ids, aggregates, types, subjects, sources = append(ids, c.IDs...), append(aggregates, c.Aggregates...), append(types, c.Types...), append(subjects, c.Subjects...), append(sources, c.Sources...)
		contentTypes, headers, payloads = append(contentTypes, c.ContentTypes...), append(headers, c.Headers...), append(payloads, c.Payloads...)
	}
	return statement{sql: f.sql.appendGroup, args: []any{keys, epochs, tokens, steps, topics, ids, aggregates, types, subjects, sources, contentTypes, headers, payloads, only}}
}
