package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/relay"
)

// walArm is a way of an event through an outbox, until nothing is left of it.
type walArm struct {
	name, note string
	prepare    func(ctx context.Context, conn *pgx.Conn) error
	commits    func(ctx context.Context, dsn, topic string) (commitFunc, func(), error)
	relay      worker
	clean      func(ctx context.Context, pool *pgxpool.Pool) error
}

var walArms = []walArm{
	{"fenceline, outbox alone", "the row that an append leaves, with its three indexes; partitions are dropped", migrateFenceline, commitBare, fenceline, dropPartitions},
	{"fenceline, fenced commit", "CommitBatch with a Waker: the fence's lock, the receipt, the newest number of the stream beside it; receipts are kept for their retry window and are not removed here", migrateFenceline, commitFenced, fenceline, dropPartitions},
	{"mark published, delete", "published_at is set when published, what is published is deleted later", createMarked, commitPlain, skipLockedMark, deleteMarked},
	{"delete", "deleted when published", createPlain, commitPlain, skipLocked, vacuumOutbox},
}

// commitBare inserts what an append leaves in the outbox and nothing else.
func commitBare(ctx context.Context, dsn, topic string) (commitFunc, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		_, err := pool.Exec(ctx, `
			insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, contenttype, history)
			select gen_random_uuid(), 'bench', $1, 'bench.event', $2, $3, $1, fenceline._shard($1), h.since, 1, $4::bigint, 'bench', 'application/octet-stream', case when $4::bigint = 1 then h.since end from fenceline.history h`,
			steadyWorkload.key(i), payload, topic, int64(i/latencyKeys+1))
		return err
	}, pool.Close, nil
}

// dropPartitions is our retention, with no time to keep anything.
func dropPartitions(ctx context.Context, pool *pgxpool.Pool) error {
	for patience := time.Now().Add(time.Minute); ; {
		r, err := relay.Retain(ctx, pool, "", relay.RetentionConfig{Keep: time.Millisecond, RotateAge: time.Millisecond})
		if err != nil {
			return err
		}
		if len(r.Dropped) > 0 {
			return nil
		}
		if time.Now().After(patience) {
			return fmt.Errorf("no partition was dropped: %+v", r.Overdue)
		}
		pause(ctx, 200*time.Millisecond) // the relay stores its cursors once a second
	}
}

func deleteMarked(ctx context.Context, pool *pgxpool.Pool) error {
	for {
		tag, err := pool.Exec(ctx, "delete from outbox where id in (select id from outbox where published_at is not null limit 1000)")
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return vacuumOutbox(ctx, pool)
		}
	}
}

func vacuumOutbox(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "vacuum outbox")
	return err
}

// wal measures how many bytes of write-ahead log one arm writes for an event.
func (s *stack) wal(ctx context.Context, a *walArm, n, events int) (_ result, err error) {
	here, err := s.place(ctx, "wal", n, a.prepare)
	if err != nil {
		return result{}, err
	}
	defer here.leave()
	commit, done, err := a.commits(ctx, here.dsn, here.topic)
	if err != nil {
		return result{}, err
	}
	defer done()
	if _, err := here.pool.Exec(ctx, "checkpoint"); err != nil {
		return result{}, err
	}
	at := func() (n int64, err error) {
		err = here.pool.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n)
		return n, err
	}
	began, err := at()
	if err != nil {
		return result{}, err
	}
	if _, err := openLoop(ctx, commit, 0, events, time.Now(), 0, nil, func(int) {}); err != nil {
		return result{}, err
	}
	written, err := at()
	if err != nil {
		return result{}, err
	}
	w := steadyWorkload
	w.Events = events
	relayCtx, stopRelay := context.WithCancel(ctx)
	relayEnded := make(chan error, 1)
	go func() {
		relayEnded <- a.relay(relayCtx, here.job(), func() {})
	}()
	defer func() {
		stopRelay()
		if e := <-relayEnded; e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("the relay ended: %w", e))
		}
	}()
	v, err := s.checkWhenQuiet(ctx, here.topic, w.counts())
	if err != nil {
		return result{}, err
	}
	published, err := at()
	if err != nil {
		return result{}, err
	}
	if err := a.clean(ctx, here.pool); err != nil {
		return result{}, err
	}
	cleaned, err := at()
	per := func(from, to int64) float64 { return float64(to-from) / float64(events) }
	return result{verdict: &v, figures: map[string]float64{"insert": per(began, written), "publish": per(written, published), "clean": per(published, cleaned), "total": per(began, cleaned)}}, err
}

func (b *bench) wal(ctx context.Context) (*figures, error) {
	f := &figures{ID: "wal", Title: "Write-ahead log", Bars: "total",
		Text: fmt.Sprintf("Bytes of write-ahead log for an event with a payload of %d bytes, a transaction for each, after a checkpoint (each page that is touched for the first time is logged as a whole, in every arm). Without a business row. %d events.", steadyWorkload.Payload, b.size.WAL),
		Columns: []column{{Key: "ratio", Title: "total, to delete", Digits: 2, RatioOf: "total"}, {Key: "total", Title: "bytes an event", Brief: true},
			{Key: "insert", Title: "of these: commit", Brief: true}, {Key: "publish", Title: "publish", Brief: true}, {Key: "clean", Title: "clean up", Brief: true}}}
	var trials []trial
	n := 0
	for i := range walArms {
		arm := &walArms[i]
		if b.picked(arm.name, "delete") {
			trials = append(trials, trial{arm.name, arm.note, "delete", func(ctx context.Context) (result, error) {
				n++
				return b.stack.wal(ctx, arm, n, b.size.WAL)
			}})
		}
	}
	return f, f.measure(ctx, trials, 1, b.say)
}
