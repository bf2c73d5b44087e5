package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// committer is the database that all arms of the commit section write to: the
// same business table, and the same outbox with its indexes, so that what
// differs is what protects the commit.
type committer struct {
	pool   *pgxpool.Pool
	shared bool // the pool is another committer's
	fences *fencing.Fences
	leases []*fencing.Lease
	group  *committer // commits of all keys share transactions; nil where nobody asks for it
	n      atomic.Int64
}

type commitArm struct {
	name, note string
	hot        bool // one key for everybody
	workers    int  // how many commit at a time, by default commitWorkers
	commit     func(ctx context.Context, c *committer, n int64) error
}

const commitReference = "plain, four round trips"

var commitArms = []commitArm{
	{name: commitReference, note: "BEGIN, business row, outbox row, COMMIT: what most programs do, and no protection", commit: plainFour},
	{name: "plain, pipelined", note: "the same in one round trip", commit: plainPipelined},
	{name: "plain, pipelined, one session", note: "one worker: the most that commits can reach of which each waits for the flush of the one before", workers: 1, commit: plainPipelined},
	{name: "plain, four round trips, 64 callers", note: "over the same pool of connections", workers: 64, commit: plainFour},
	{name: "hand-written fence", note: "BEGIN, lock and compare the token, receipt, business row, outbox row, COMMIT, one after the other; no history, no lives, no sequence", commit: handWritten},
	{name: "fenceline, callback", note: "Lease.Commit", commit: fencedCallback},
	{name: "fenceline, batch", note: "Lease.CommitBatch", commit: fencedBatch},
	{name: "fenceline, callback, group commit", note: "the same with Config.GroupCommit 2 and LeaseConfig.CoalesceCallbacks: what waits shares a transaction, whatever its keys", commit: grouped(fencedCallback)},
	{name: "fenceline, batch, group commit", note: "Lease.CommitBatch with Config.GroupCommit 2", commit: grouped(fencedBatch)},
	{name: "fenceline, batch, group commit, 32 callers", note: "the same with twice the callers", workers: 32, commit: grouped(fencedBatch)},
	{name: "fenceline, batch, group commit, 64 callers", note: "and with four times as many", workers: 64, commit: grouped(fencedBatch)},
	{name: "one hot key: plain", note: "four round trips, an update of the key's row among them in place of an insert", hot: true, commit: plainHot},
	{name: "one hot key: hand-written fence", note: "as above", hot: true, commit: handWritten},
	{name: "one hot key: fenceline alone", note: "each commit its own transaction", hot: true, commit: fencedAlone},
	{name: "one hot key: fenceline", note: "as it comes: what waits shares a transaction", hot: true, commit: fencedBatch},
	{name: "one hot key: fenceline, 32 callers", note: "the same with twice the callers: the next transaction is there before the one under way is done", hot: true, workers: 32, commit: fencedBatch},
	{name: "one hot key: fenceline, 64 callers", note: "and with four times as many", hot: true, workers: 64, commit: fencedBatch},
}

const (
	commitKeys    = 1000
	commitWorkers = 16

	insertResult = "insert into public.result (key, note) values ($1, $2)"
	insertOutbox = "insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, contenttype) values ($1, 'results', $2, 'result', $3, 'results', $2, 7, 1, 1, $4, 'bench', 'application/json')"
)

var commitPayload = []byte(strings.Repeat("x", 200))

// newCommitter makes the tables and takes the leases.
func newCommitter(ctx context.Context, dsn string, wake func()) (*committer, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = commitWorkers+4, commitWorkers
	c := &committer{}
	if c.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	m, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := m.Up(ctx, migrations.UpOptions{}); err != nil {
		return nil, err
	}
	for _, sql := range []string{
		"create table public.result (id bigint generated always as identity primary key, key text not null, note text)",
		"create table public.counter (key text primary key, n bigint not null default 0) with (fillfactor = 50)",
		"create table public.hand_fence (key text primary key, token bigint not null)",
		"create table public.hand_receipt (key text not null, token bigint not null, step text not null, digest bytea not null, primary key (key, token, step))",
		fmt.Sprintf("insert into public.hand_fence select 'bench/' || i, 1 from generate_series(0, %d) i", commitKeys-1),
		fmt.Sprintf("insert into public.counter select 'bench/' || i from generate_series(0, %d) i", commitKeys-1),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return c, c.acquire(ctx, "bench", fencing.Config{Wake: wake}, fencing.LeaseConfig{})
}

// another commits to the same database with leases of its own.
func (c *committer) another(ctx context.Context, wake func()) (*committer, error) {
	o := &committer{pool: c.pool, shared: true}
	return o, o.acquire(ctx, "other", fencing.Config{Wake: wake}, fencing.LeaseConfig{})
}

// withGroup gives the committer another whose commits of all keys share
// transactions.
func (c *committer) withGroup(ctx context.Context) error {
	c.group = &committer{pool: c.pool, shared: true}
	return c.group.acquire(ctx, "group", fencing.Config{GroupCommit: 2}, fencing.LeaseConfig{CoalesceCallbacks: 32})
}

// grouped has that one commit.
func grouped(commit func(ctx context.Context, c *committer, n int64) error) func(ctx context.Context, c *committer, n int64) error {
	return func(ctx context.Context, c *committer, n int64) error { return commit(ctx, c.group, n) }
}

func (c *committer) acquire(ctx context.Context, prefix string, cfg fencing.Config, lease fencing.LeaseConfig) (err error) {
	cfg.Holder, cfg.Logger, lease.TTL = "bench", slog.New(slog.DiscardHandler), time.Hour
	c.fences, err = fencing.New(ctx, c.pool, cfg)
	if err != nil {
		return err
	}
	for i := range commitKeys {
		l, err := c.fences.Acquire(ctx, fmt.Sprintf("%s/%d", prefix, i), lease)
		if err != nil {
			return err
		}
		c.leases = append(c.leases, l)
	}
	return nil
}

func (c *committer) close() {
	if c.group != nil {
		c.group.close()
	}
	for _, l := range c.leases {
		_ = l.Release(context.Background())
	}
	if !c.shared {
		c.pool.Close()
	}
}

// key is the n-th commit's: a hot one is the first for everybody.
func (c *committer) lease(n int64) *fencing.Lease {
	if n < 0 {
		return c.leases[0]
	}
	return c.leases[n%int64(len(c.leases))]
}

func plainFour(ctx context.Context, c *committer, n int64) error {
	key := c.lease(n).Position().Key
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		return writePlain(ctx, tx, key, n)
	})
}

func writePlain(ctx context.Context, tx pgx.Tx, key string, n int64) error {
	if _, err := tx.Exec(ctx, insertResult, key, "x"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, insertOutbox, uuid.Must(uuid.NewV7()), key, commitPayload, step(n)+2)
	return err
}

func plainHot(ctx context.Context, c *committer, n int64) error {
	key := c.lease(n).Position().Key
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "update public.counter set n = n + 1 where key = $1", key); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertOutbox, uuid.Must(uuid.NewV7()), key, commitPayload, step(n)+2)
		return err
	})
}

func plainPipelined(ctx context.Context, c *committer, n int64) error {
	key := c.lease(n).Position().Key
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(insertResult, key, "x")
	batch.Queue(insertOutbox, uuid.Must(uuid.NewV7()), key, commitPayload, step(n)+2)
	batch.Queue("commit")
	return c.pool.SendBatch(ctx, batch).Close()
}

// handWritten is the fence that people write: right as far as it goes.
func handWritten(ctx context.Context, c *committer, n int64) error {
	key := c.lease(n).Position().Key
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		var token int64
		if err := tx.QueryRow(ctx, "select token from public.hand_fence where key = $1 for update", key).Scan(&token); err != nil {
			return err
		}
		if token != 1 {
			return fmt.Errorf("stale token")
		}
		if _, err := tx.Exec(ctx, "insert into public.hand_receipt (key, token, step, digest) values ($1, 1, $2, $3)", key, strconv.FormatInt(n, 10), commitPayload[:32]); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insertResult, key, "x"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertOutbox, uuid.Must(uuid.NewV7()), key, commitPayload, step(n)+2)
		return err
	})
}

func step(n int64) int64 { return max(n, -n) }

func commitContent(n int64) fencing.Content {
	return fencing.Content{Step: strconv.FormatInt(n, 10), Type: "application/json", Bytes: commitPayload}
}

func commitEvent() outbox.Event {
	return outbox.Event{Topic: "results", Type: "result", Payload: commitPayload}
}

func fencedCallback(ctx context.Context, c *committer, n int64) error {
	_, err := c.lease(n).Commit(ctx, commitContent(n), func(ctx context.Context, tx fencing.Tx) error {
		if _, err := tx.Exec(ctx, insertResult, tx.Gate().Key, "x"); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, commitEvent())
	})
	return err
}

func queueCommit(ctx context.Context) func(*fencing.Batch) error {
	return func(b *fencing.Batch) error {
		b.Queue(insertResult, b.Gate().Key, "x")
		return outbox.Append(ctx, b, commitEvent())
	}
}

func fencedBatch(ctx context.Context, c *committer, n int64) error {
	_, err := c.lease(n).CommitBatch(ctx, commitContent(n), queueCommit(ctx))
	return err
}

func fencedAlone(ctx context.Context, c *committer, n int64) error {
	_, err := c.fences.CommitBatch(ctx, c.lease(n).Position(), commitContent(n), queueCommit(ctx))
	return err
}

// commitSample is one arm's slice of a round.
type commitSample struct{ rate, client, server float64 }

// slice lets all workers commit for a time. A hot arm's numbers are negative,
// which is how lease knows it.
func (c *committer) slice(ctx context.Context, s *stack, a *commitArm, d time.Duration) (commitSample, error) {
	sign := int64(1)
	if a.hot {
		sign = -1
	}
	client, server, began := selfCPU(), cpuOf(s.postgres.PID()), time.Now()
	var done atomic.Int64
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	for range cmp.Or(a.workers, commitWorkers) {
		wg.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				if err := a.commit(ctx, c, sign*c.n.Add(1)); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return commitSample{}, failed
	}
	n := float64(max(1, done.Load()))
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	return commitSample{rate: n / time.Since(began).Seconds(), client: per(selfCPU() - client), server: per(cpuOf(s.postgres.PID()) - server)}, nil
}

func (b *bench) commit(ctx context.Context) (*figures, error) {
	f := &figures{ID: "commit", Title: "Committing", Bars: "ratio",
		Text: fmt.Sprintf("A business row and an outbox row, %d keys, and %d callers where an arm does not say otherwise. All arms write to the same tables.", commitKeys, commitWorkers),
		Columns: []column{{Key: "ratio", Title: "of " + commitReference, Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "commits/s", Brief: true},
			{Key: "client", Title: "client CPU µs a commit", Brief: true}, {Key: "server", Title: "PostgreSQL", Brief: true}}}
	dsn, err := b.database(ctx, "commits")
	if err != nil {
		return f, err
	}
	defer b.dropDatabase(ctx, "commits")
	c, err := newCommitter(ctx, dsn, nil)
	if err != nil {
		return f, err
	}
	defer c.close()
	if err := c.withGroup(ctx); err != nil {
		return f, err
	}
	var trials []trial
	for i := range commitArms {
		a := &commitArms[i]
		if b.picked(a.name, commitReference) {
			trials = append(trials, trial{a.name, a.note, commitReference, func(ctx context.Context) (result, error) {
				sm, err := c.slice(ctx, b.stack, a, b.size.Slice)
				return result{figures: sm.figures()}, err
			}})
		}
	}
	// Plans and caches.
	for _, t := range trials {
		if _, err := t.run(ctx); err != nil {
			return f, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return f, f.measure(ctx, trials, b.size.Rounds, b.say)
}

func (s commitSample) figures() map[string]float64 {
	return map[string]float64{"rate": s.rate, "client": s.client, "server": s.server}
}
