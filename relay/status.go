package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// countLimit bounds what Status counts, so that it also answers at a backlog of
// millions.
const countLimit = 100_000

// Status is what the database says of the relay at one moment.
type Status struct {
	// Backlog is the number of committed events that the stored cursors haven't
	// passed, forks included and held streams not. More says that counting
	// stopped at 100,000. After a crash a cursor can be a second behind.
	Backlog int64
	More    bool
	// Oldest is the age of the oldest of them, zero if there is none.
	Oldest time.Duration
	// Held are the held streams with what was decided about them, Forks the
	// refused topics and the partitions that were set aside.
	Held  []HeldInfo
	Forks []ForkStatus
	// Published is false until a cursor has been stored for the first time.
	Published bool
	// CursorAge is the time since a cursor was last stored. An idle relay stores
	// nothing.
	CursorAge time.Duration
	// Instances are those that are alive, the oldest first, with their shards.
	Instances []Instance
	// Unowned are the shards that no instance has: their events wait. For a
	// moment that is so whenever shards change hands.
	Unowned []int
	// Holder names the instances that have shards, separated by commas, empty if
	// there is none; LeaseExpires is the earliest moment at which another could
	// take one of their shards over if they died now; Epoch and Token are the
	// position of one of their leases.
	Holder       string
	LeaseExpires time.Time
	Epoch, Token int64
	// Now is the time on the database's clock.
	Now time.Time
}

// Instance is a relay that takes part in the work.
type Instance struct {
	// ID tells it from others, Name is [Config.Name], which two can have.
	ID, Name string
	// Started is when it first said that it is there, Expires when it counts as
	// dead unless it says so again; on the database's clock.
	Started, Expires time.Time
	// Shards are the shards whose leases it holds, in order.
	Shards []int
}

// ForkStatus is a topic that the broker refuses, a partition that was set aside,
// or either while it catches up.
type ForkStatus struct {
	// Topic is its name.
	Topic string
	// Partition is the partition, -1 if it is the whole topic.
	Partition int
	// Reason says in words what is wrong and what to do, Detail what the broker
	// answered.
	Reason, Detail string
	// Since is when that was stored for the first time, on the database's clock.
	Since time.Time
	// Backlog is the number of its events that wait, part of Status.Backlog, so
	// without those of its held streams. More says that counting stopped.
	Backlog int64
	More    bool
	// Retired: an operator has given the topic up; what waits gets its verdict.
	Retired bool
	// Unasked: nobody has refused it. The broker had not described the topic when
	// an instance stopped, and the next one asks.
	Unasked bool
}

// backlogSQL counts what a cursor has not passed. Two branches as in the
// reader: rows of transactions that ran when s1 was taken, by index (xid, pos);
// rows above the low bound, by primary key. Those of them that lie behind the
// progress inside an open window are published. By key only where it is asked
// for, which is where partitions matter.
const backlogSQL = `
select case when $10 then key else '' end, topic, count(*), min(created_at) from (
  (select o.topic, o.key, o.created_at from unnest($4::xid8[]) x cross join lateral (
     select xid, pos, topic, key, created_at from @schema@.outbox
      where (xid, pos) > (x, 0) and (xid, pos) <= (x, $2) and ` + unpublished + `) o limit $8)
  union all
  (select topic, key, created_at from @schema@.outbox where pos > $2 and not pg_visible_in_snapshot(xid, $1::pg_snapshot) and ` + unpublished + ` order by pos limit $8)
) u group by 1, 2`

const unpublished = `not coalesce(pos <= $3 and pg_visible_in_snapshot(xid, $5::pg_snapshot), false)
  and (topic = any ($6::text[])) = $7 and (1::bigint << shard) & $9::bigint <> 0
  and not exists (select from @schema@.relay_held h where h.topic = outbox.topic and h.key = outbox.key and outbox.pos >= h.pos)`

// ReadStatus reads what the relays on a schema have stored, in one transaction
// that sees a single moment. It needs no running relay and changes nothing; a
// login needs the role fenceline_monitor.
func ReadStatus(ctx context.Context, pool *pgxpool.Pool, schemaName string) (Status, error) {
	if schemaName == "" {
		schemaName = schema.Default
	}
	var st Status
	if err := schema.Check(ctx, pool, schemaName, schema.Producer); err != nil {
		return st, fmt.Errorf("relay: %w", err)
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		q := &statusQuery{st: &st, tx: tx, name: schemaName, x: func(sql string) string { return schema.Expand(sql, schemaName) }}
		return q.read(ctx)
	})
	if err != nil {
		return st, fmt.Errorf("relay: read the status: %w", err)
	}
	return st, nil
}

type statusQuery struct {
	st   *Status
	tx   pgx.Tx
	name string
	x    func(sql string) string
}

func (q *statusQuery) read(ctx context.Context) error {
	var stored *time.Time
	if err := q.tx.QueryRow(ctx, q.x(`select clock_timestamp(), (select max(at) from @schema@.relay_checkpoint)`)).Scan(&q.st.Now, &stored); err != nil {
		return err
	}
	if stored != nil {
		q.st.Published, q.st.CursorAge = true, q.st.Now.Sub(*stored)
	}
	if err := q.instances(ctx); err != nil {
		return err
	}
	var err error
	if q.st.Held, err = listHeld(ctx, q.tx, q.name, HeldFilter{}); err != nil {
		return err
	}
	// The same flows that a relay with all shards would begin with.
	s := &session{shards: allShards, sql: &statements{loadCursors: q.x(loadCursorsSQL), loadForks: q.x(loadForksSQL)}}
	if err := s.loadCursors(ctx, q.tx, allShards.list()); err != nil {
		return err
	}
	if err := s.loadForks(ctx, q.tx, allShards.list()); err != nil {
		return err
	}
	if err := q.backlog(ctx, s); err != nil {
		return err
	}
	return q.retired(ctx)
}

// retired marks the forks of topics that were given up.
func (q *statusQuery) retired(ctx context.Context) error {
	if len(q.st.Forks) == 0 {
		return nil
	}
	rows, err := q.tx.Query(ctx, q.x(`select topic from @schema@.relay_topic where retired_at is not null`))
	if err != nil {
		return err
	}
	topics, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range q.st.Forks {
		q.st.Forks[i].Retired = slices.Contains(topics, q.st.Forks[i].Topic)
	}
	return err
}

// instances reads who is there and who has what.
func (q *statusQuery) instances(ctx context.Context) error {
	st := q.st
	rows, err := q.tx.Query(ctx, q.x(`select i.id::text, i.name, i.started, i.expires_at, coalesce(array_agg(substr(l.key, 17)::int order by l.key) filter (where l.key is not null), '{}')
		from @schema@.relay_instance i left join @schema@.lease l on l.holder = i.holder and l.expires_at > $1 and l.key between 'fenceline:relay/00' and 'fenceline:relay/63'
		where i.expires_at > $1 group by i.id order by i.started, i.id`), st.Now)
	if err != nil {
		return err
	}
	if st.Instances, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Instance]); err != nil {
		return err
	}
	rows, err = q.tx.Query(ctx, q.x(`select substr(key, 17)::int, holder, expires_at, epoch, token from @schema@.lease
		where key between 'fenceline:relay/00' and 'fenceline:relay/63' and expires_at > $1 order by key`), st.Now)
	if err != nil {
		return err
	}
	owned := shardSet(0)
	var holders []string
	var shard int
	var holder string
	var expires time.Time
	_, err = pgx.ForEachRow(rows, []any{&shard, &holder, &expires, &st.Epoch, &st.Token}, func() error {
		owned = owned.with(shard)
		if !slices.Contains(holders, holder) {
			holders = append(holders, holder)
		}
		if st.LeaseExpires.IsZero() || expires.Before(st.LeaseExpires) {
			st.LeaseExpires = expires
		}
		return nil
	})
	st.Holder, st.Unowned = strings.Join(holders, ", "), (allShards &^ owned).list()
	return err
}

// backlog counts, flow by flow. Topics of which a partition was set aside are
// counted by key, since only the key says which partition an event is in.
func (q *statusQuery) backlog(ctx context.Context, s *session) error {
	split := []string{}
	for _, f := range s.forks {
		if f.partition >= 0 && !slices.Contains(split, f.topic) {
			split = append(split, f.topic)
		}
	}
	flows := []*fork{{flow: s.main, partition: -1}}
	flows = append(flows, s.forks...)
	for _, f := range flows {
		var n int64
		var more bool
		var err error
		if f.topic == "" {
			what := s.rest(&f.flow)
			what.topics = append(what.topics, split...)
			if _, _, err = q.count(ctx, s, f, what, false); err != nil {
				return err
			}
			if len(split) > 0 {
				_, _, err = q.count(ctx, s, f, filter{shards: f.flow.shards, topics: split, only: true}, true)
			}
		} else {
			n, more, err = q.count(ctx, s, f, filter{shards: f.flow.shards, topics: []string{f.topic}, only: true}, slices.Contains(split, f.topic))
			q.fork(f, n, more)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fork adds one of several forks of a topic or partition to its entry.
func (q *statusQuery) fork(f *fork, n int64, more bool) {
	for i := range q.st.Forks {
		if e := &q.st.Forks[i]; e.Topic == f.topic && e.Partition == f.partition {
			e.Backlog, e.More = e.Backlog+n, e.More || more
			if e.Unasked && f.reason != undescribed { // for some of its shards it was refused
				e.Reason, e.Detail, e.Unasked = f.reason, f.detail, false
			}
			if f.since.Before(e.Since) {
				e.Since = f.since
			}
			return
		}
	}
	q.st.Forks = append(q.st.Forks, ForkStatus{Topic: f.topic, Partition: f.partition, Reason: f.reason, Detail: f.detail, Since: f.since, Backlog: n, More: more, Unasked: f.reason == undescribed})
}

// count adds what a flow has still to publish.
func (q *statusQuery) count(ctx context.Context, s *session, f *fork, what filter, byKey bool) (total int64, more bool, err error) {
	c := f.flow.acked
	xids := c.s1.xip
	if xids == nil {
		xids = []uint64{}
	}
	var window *string
	if !c.boundary() {
		window = &c.s2.text
	}
	rows, err := q.tx.Query(ctx, q.x(backlogSQL), c.s1.text, c.low, c.last, xids, window, what.list(), what.only, countLimit, what.shards.mask(), byKey)
	if err != nil {
		return 0, false, err
	}
	var seen int64
	var r row
	var n int64
	var oldest time.Time
	owner := &f.flow
	if f.topic == "" && owner != &s.main && f.flow.shards == s.main.shards {
		owner = &s.main
	}
	_, err = pgx.ForEachRow(rows, []any{&r.Key, &r.Topic, &n, &oldest}, func() error {
		seen += n
		if byKey {
			if r.shard = outbox.Shard(r.Key); s.owner(&r) != owner {
				return nil
			}
		}
		total += n
		q.st.Oldest = max(q.st.Oldest, q.st.Now.Sub(oldest))
		return nil
	})
	more = seen >= countLimit
	q.st.Backlog += total
	q.st.More = q.st.More || more
	return total, more, err
}
