package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// heldArm is a relay that reads while somebody's snapshot keeps the database
// from removing dead rows.
type heldArm struct {
	name, note string
	prepare    func(ctx context.Context, conn *pgx.Conn) error
	commits    func(ctx context.Context, dsn, topic string) (commitFunc, func(), error)
	relay      worker
}

var heldArms = []heldArm{
	{"fenceline", "relay.Run, as it comes; events committed by CommitBatch, with a Waker", migrateFenceline, commitFenced, fenceline},
	{"SKIP LOCKED, delete", "one row inserted for an event, batches of 1000, deleted when published", createPlain, commitPlain, skipLocked},
	{"SKIP LOCKED, mark published", "the same, published_at set, a partial index on what isn't published", createMarked, commitPlain, skipLockedMark},
}

func createMarked(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, plainTable+"; alter table outbox add published_at timestamptz; create index outbox_unpublished on outbox (id) where published_at is null")
	return err
}

// sizeSQL is the dead rows of a database's tables, as far as its statistics
// know, and their size with indexes.
const sizeSQL = `select coalesce(sum(n_dead_tup), 0)::float8, coalesce(sum(pg_total_relation_size(relid)), 0)::float8 from pg_stat_user_tables`

// held runs one arm: a while without, and a while under the snapshot.
func (s *stack) held(ctx context.Context, a *heldArm, n int, free, hold time.Duration) (_ result, err error) {
	at, err := s.place(ctx, "held", n, a.prepare)
	if err != nil {
		return result{}, err
	}
	defer at.leave()
	commit, done, err := a.commits(ctx, at.dsn, at.topic)
	if err != nil {
		return result{}, err
	}
	defer done()

	reads := &readTimes{}
	relayCtx, stopRelay := context.WithCancel(ctx)
	relayEnded := make(chan error, 1)
	go func() {
		j := at.job()
		j.tracer = reads
		relayEnded <- a.relay(relayCtx, j, func() {})
	}()
	defer func() {
		stopRelay()
		if e := <-relayEnded; e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("the relay ended: %w", e))
		}
	}()

	producers := startClosedLoop(ctx, commit, 8)
	pause(ctx, free/3) // plans, caches, a first autovacuum
	reads.take()
	freeRate := producers.rate(ctx, free)
	freeReads := reads.take()

	res := result{figures: map[string]float64{}}
	heldRate, heldReads, err := underSnapshot(ctx, at.pool, hold, producers, reads, &res)
	want, failed := producers.end()
	if err = errors.Join(err, failed, ctx.Err()); err != nil {
		return result{}, err
	}
	if len(freeReads) == 0 || len(heldReads) == 0 {
		return result{}, errors.New("the relay has read nothing")
	}
	f, h := median(freeReads), median(heldReads)
	for key, v := range map[string]float64{"free": f, "held": h, "reads": h / f, "rate": freeRate, "commits": heldRate / freeRate} {
		res.figures[key] = v
	}
	v, err := s.checkWhenQuiet(ctx, at.topic, want)
	res.verdict = &v
	return res, err
}

// underSnapshot holds a snapshot while the load goes on; it gives the rate and
// the reads of the last third.
func underSnapshot(ctx context.Context, pool *pgxpool.Pool, hold time.Duration, producers *closedLoop, reads *readTimes, res *result) (rate float64, last []time.Duration, err error) {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return 0, nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var dead, size, before float64
	if err := tx.QueryRow(ctx, sizeSQL).Scan(&dead, &before); err != nil {
		return 0, nil, err
	}
	const steps = 12
	began, committed := time.Now(), producers.committed.Load()
	for i := range steps {
		r := producers.rate(ctx, hold/steps)
		took := reads.take()
		if len(took) > 0 {
			res.curve = append(res.curve, point{time.Since(began).Seconds(), median(took)})
		}
		if i >= steps*2/3 {
			rate += r / (steps - steps*2/3)
			last = append(last, took...)
		}
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
	}
	events := float64(max(1, producers.committed.Load()-committed))
	if err := pool.QueryRow(ctx, sizeSQL).Scan(&dead, &size); err != nil {
		return 0, nil, err
	}
	res.figures["dead"], res.figures["size"] = dead/events, (size-before)/events
	return rate, last, nil
}

// checkWhenQuiet checks a topic when everything has arrived, or nothing more
// does.
func (s *stack) checkWhenQuiet(ctx context.Context, topic string, want counts) (verdict, error) {
	var total, n int64
	for _, c := range want {
		total += int64(c)
	}
	since := time.Now()
	for time.Since(since) < 2*time.Second || n < total && time.Since(since) < 20*time.Second {
		got, err := s.arrived(ctx, topic)
		if err != nil {
			return verdict{}, err
		}
		if got != n {
			n, since = got, time.Now()
		}
		pause(ctx, 50*time.Millisecond)
		if ctx.Err() != nil {
			return verdict{}, ctx.Err()
		}
	}
	return s.check(ctx, topic, want)
}

// median in milliseconds.
func median(d []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(d))
	return percentile(sorted, 50).Seconds() * 1e3
}

func (b *bench) held(ctx context.Context) (*figures, error) {
	f := &figures{ID: "held", Title: "Under somebody's snapshot", Bars: "reads", Curves: &curves{X: "seconds since the snapshot was taken", Y: "a read of the relay, ms (logarithmic)", Logarithmic: true},
		Text: fmt.Sprintf("Eight sessions commit one event after the other, a relay publishes them. After %.0f s somebody takes a snapshot and holds it, as a backup, a report or a forgotten session does, so that no dead row can be removed. Compared are the time before it with the last third of the %.0f s under it: the median time of the relay's reads that found something, and the rate of commits.", b.size.Free.Seconds()*4/3, b.size.Held.Seconds()),
		Columns: []column{{Key: "reads", Title: "reads, held to free", Digits: 2}, {Key: "commits", Title: "commits, held to free", Digits: 2}, {Key: "free", Title: "read ms, free", Digits: 2, Brief: true}, {Key: "held", Title: "held", Digits: 2, Brief: true},
			{Key: "rate", Title: "commits/s, free", Brief: true}, {Key: "dead", Title: "dead rows an event", Digits: 2, Brief: true}, {Key: "size", Title: "bytes an event, with indexes", Brief: true}}}
	var trials []trial
	n := 0
	for i := range heldArms {
		arm := &heldArms[i]
		if b.picked(arm.name, "") {
			trials = append(trials, trial{arm.name, arm.note, "", func(ctx context.Context) (result, error) {
				n++
				return b.stack.held(ctx, arm, n, b.size.Free, b.size.Held)
			}})
		}
	}
	return f, f.measure(ctx, trials, b.size.HeldRounds, b.say)
}
