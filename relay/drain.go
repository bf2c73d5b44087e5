package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// ErrPaused is returned by [Drain] and [Republish] while an operator keeps the relays from
// publishing. See [SetPause].
var ErrPaused = errors.New(`relay: the relays are paused: "relay status" says by whom and why, "relay resume" ends it`)

// Drained is what [Drain] has done, and what it had to leave.
type Drained struct {
	// Records is the number of records that this call has published, second
	// copies included; others may have published as well.
	Records int64
	// Held is the number of streams that are held because the broker refuses a
	// record of theirs, Refused the topics that it refuses, with events in the
	// outbox. What they have waits for an operator.
	Held    int
	Refused []string
}

// Drain publishes what is committed when it is called, and returns: for a job
// that runs now and then, and for tests. It is a [Run] that ends by itself, so
// it needs what that needs and returns its errors; events that are committed
// meanwhile may be published too. If other relays run, it waits for what they
// publish.
//
// What the broker refuses it does not wait for: see [Drained]. A held stream of
// which an operator has asked a retry or a skip is taken care of, and so is one whose
// topic is retired. A topic that is refused has Config.Grace to prove usable. It
// returns ErrPaused if the relays are paused, and the error of ctx if that ends first.
func Drain(ctx context.Context, pool *pgxpool.Pool, publisher Publisher, cfg Config) (Drained, error) {
	if err := cfg.Validate(); err != nil {
		return Drained{}, err
	}
	cfg = cfg.withDefaults()
	if err := check(ctx, pool, cfg); err != nil {
		return Drained{}, err
	}
	d := &drainage{pool: pool, cfg: cfg}
	var standby bool
	err := patient{pool}.QueryRow(ctx, "select pg_current_snapshot()::text, pg_is_in_recovery()").Scan(&d.upTo, &standby)
	if err == nil && standby {
		err = errStandby
	}
	if err != nil {
		return Drained{}, fmt.Errorf("relay: drain: %w", err)
	}
	left, err := d.left(ctx)
	if err != nil || left.nothing() && len(left.refused) == 0 {
		return d.report(left), err
	}
	return d.run(ctx, publisher)
}

type drainage struct {
	pool    *pgxpool.Pool
	cfg     Config
	upTo    string // the snapshot of its start
	records atomic.Int64
	paused  atomic.Bool
	shares  atomic.Int64 // how often its shards have become others
}

func (d *drainage) report(l left) Drained {
	return Drained{Records: d.records.Load(), Held: l.held, Refused: l.refused}
}

func (d *drainage) run(ctx context.Context, publisher Publisher) (Drained, error) {
	cfg := d.cfg
	cfg.CheckpointInterval = min(cfg.CheckpointInterval, 20*time.Millisecond) // it is the cursor that says it is done
	cfg.Retention = nil
	published, paused, shards := cfg.Hooks.Published, cfg.Hooks.Paused, cfg.Hooks.Shards
	cfg.Hooks.Shards = func(list []int) {
		d.shares.Add(1)
		if shards != nil {
			shards(list)
		}
	}
	cfg.Hooks.Published = func(topic string, partition, records, bytes int, age time.Duration) {
		d.records.Add(int64(records))
		if published != nil {
			published(topic, partition, records, bytes, age)
		}
	}
	cfg.Hooks.Paused = func(p bool) {
		d.paused.Store(p)
		if paused != nil {
			paused(p)
		}
	}
	inner, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- Run(inner, d.pool, publisher, cfg) }()
	l, err := d.wait(ctx, ended)
	stop()
	if errors.Is(err, errEnded) {
		return d.report(l), (<-ended)
	}
	return d.report(l), errors.Join(err, <-ended)
}

// errEnded: Run has ended by itself.
var errEnded = errors.New("relay: ended")

// wait returns when nothing is left to wait for.
func (d *drainage) wait(ctx context.Context, ended chan error) (l left, err error) {
	const least, most = 5 * time.Millisecond, 200 * time.Millisecond
	wait := least
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var stuck time.Time // since when only refused topics are left, and don't move
	var before string
	// Nothing of them can move before their shards are somebody's: those of an
	// instance that has died, the last drain perhaps, are nobody's for a lease time.
	var shares int64
	started := time.Now()
	for {
		select {
		case <-ctx.Done():
			return l, ctx.Err()
		case err := <-ended:
			ended <- err
			return l, errEnded
		case <-timer.C:
		}
		if d.paused.Load() {
			return l, ErrPaused
		}
		if l, err = d.left(ctx); err != nil {
			return l, err
		}
		switch {
		case l.nothing() && len(l.refused) == 0:
			return l, nil
		case !l.nothing() || l.forks != before || d.shares.Load() != shares:
			before, shares, stuck = l.forks, d.shares.Load(), time.Now()
		case shares == 0 && time.Since(started) < d.cfg.LeaseTTL:
			stuck = time.Now()
		case time.Since(stuck) >= d.cfg.Grace:
			return l, nil
		}
		wait = min(2*wait, most)
		timer.Reset(wait)
	}
}

// left is what is not published of what was visible at the start.
type left struct {
	flows   bool     // cursors of shards have events before them, or a held stream is asked for
	refused []string // topics whose forks have
	forks   string   // where the forks are, to see whether they move
	held    int      // streams
}

func (l left) nothing() bool { return !l.flows }

// leftSQL asks each cursor whether a row of its shards is visible in $1 and not
// passed: the stragglers by (xid, pos), the others by pos, as the reader does.
// Held streams are none of their business, nor are topics with a fork, which
// have cursors of their own, in the shards of that fork. The fork of a partition
// takes nothing of the others out of the flows, and a flow's cursor passes what it
// has; each try of such a fork has the cursors stored.
//
// A held stream of which an operator has asked something is waited for until it is
// given back, or held once more: where only drains run, nobody else would do it.
// One of a topic with a fork waits for that. That a topic is retired asks for the
// verdict on all of its held streams, and its forks end by themselves.
const leftSQL = `
select exists (
    select from @schema@.relay_held h where h.state <> 'held' and not exists (select from @schema@.relay_fork f where f.topic = h.topic)
      or exists (select from @schema@.relay_topic t where t.topic = h.topic and t.retired_at is not null))
  or exists (select from @schema@.relay_fork c where ` + unasked + ` and ` + forkLeft + `)
  or exists (
    select from @schema@._relay_cursor c cross join lateral (
      (select 1 from pg_snapshot_xip(c.s1) x cross join lateral (
         select 1 from @schema@.outbox o where (o.xid, o.pos) > (x, 0) and (o.xid, o.pos) <= (x, c.low) and o.shard = any (c.shards) and ` + leftRow + ` and ` + noFork + ` limit 1) r limit 1)
      union all
      (select 1 from @schema@.outbox o where o.pos > coalesce(c.low, 0) and o.shard = any (c.shards)
         and not coalesce(pg_visible_in_snapshot(o.xid, c.s1), false) and ` + leftRow + ` and ` + noFork + ` order by o.pos limit 1)) r),
  coalesce((select array_agg(distinct c.topic) from @schema@.relay_fork c where not (` + unasked + `) and ` + forkLeft + `), '{}'),
  coalesce((select string_agg(f.topic || f.s1 || ' ' || f.last_pos, ',' order by f.topic, f.last_pos, f.s1::text) from @schema@.relay_fork f), ''),
  (select count(*) from @schema@.relay_held), pg_is_in_recovery()`

const leftRow = `pg_visible_in_snapshot(o.xid, $1::text::pg_snapshot) and not coalesce(o.pos <= c.last_pos and pg_visible_in_snapshot(o.xid, c.s2), false)
  and not exists (select from @schema@.relay_held h where h.topic = o.topic and h.key = o.key and o.pos >= h.pos)`

const forkLeft = `exists (
    select from @schema@.outbox o where o.topic = c.topic and not pg_visible_in_snapshot(o.xid, c.s1) and ` + leftRow + `)`

// unasked is of a fork that waits for the broker to describe its topic, which has
// refused nothing: it may be away, and then it is waited for.
const unasked = `c.partition is null and coalesce(c.reason, '') = '` + undescribed + `'`

const noFork = `not exists (select from @schema@.relay_fork f where f.topic = o.topic and f.partition is null and o.shard = any (f.shards))`

func (d *drainage) left(ctx context.Context) (l left, err error) {
	var standby bool
	err = patient{d.pool}.QueryRow(ctx, schema.Expand(leftSQL, d.cfg.Schema), d.upTo).Scan(&l.flows, &l.refused, &l.forks, &l.held, &standby)
	if err == nil && standby {
		err = errStandby // which may not have what is to be published
	}
	if err != nil {
		return l, fmt.Errorf("relay: drain: look what is left: %w", err)
	}
	return l, nil
}
