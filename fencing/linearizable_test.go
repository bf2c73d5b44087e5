package fencing_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgproxy"
)

// Many clients take over, commit, retry, close, open and sweep the same few keys
// while backends are killed and answers are lost. What they were told must be what
// one client could have been told who does all of it in some order that agrees
// with the clock. An answer that was lost forks: it has happened or it has not. One
// that says that nothing was written does not.

// answerOf is an error's name in the history.
func answerOf(replayed bool, err error) string {
	switch {
	case err == nil && replayed:
		return "replayed"
	case err == nil:
		return "committed"
	case errors.Is(err, fencing.ErrConflict):
		return "conflict"
	case errors.Is(err, fencing.ErrStale):
		return "stale"
	case errors.Is(err, fencing.ErrClosed):
		return "closed"
	case errors.Is(err, fencing.ErrUnconfirmable):
		return "unconfirmable"
	}
	if errors.Is(err, fencing.ErrUnknownOutcome) {
		return "unknown"
	}
	return "failed" // the documentation says of any other error that nothing was written
}

// recorder is the history of one round. All clients share it.
type recorder struct {
	begin time.Time

	mu   sync.Mutex
	ops  []porcupine.Operation
	seen map[string]int
}

// record does one call, and returns the index of its entry. Where the library
// has asked several times by itself, since an answer was lost on the way, the
// earlier ones are calls of their own, of which nobody knows: a lease that was
// ended in between is then granted twice, and a close is replayed that nobody was
// told to be the first. How often it has asked is seen, not supposed.
func (r *recorder) record(client int, a asked, do func(context.Context) told) (int, told) {
	var asks atomic.Int64
	call := time.Since(r.begin)
	t := do(context.WithValue(ctx, asksKey{}, &asks))
	end := time.Since(r.begin)
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.what != "commit" {
		for range asks.Load() - 1 {
			r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: a, Call: int64(call), Output: told{answer: "unknown"}, Return: int64(end)})
		}
	}
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: a, Call: int64(call), Output: t, Return: int64(end)})
	r.seen[a.what+" "+t.answer]++
	return len(r.ops) - 1, t
}

// asksKey is of the counter of what a call has sent.
type asksKey struct{}

// countsAsks counts the batches that are sent for a call.
type countsAsks struct{}

func (countsAsks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (countsAsks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (countsAsks) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if n, ok := ctx.Value(asksKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	return ctx
}
func (countsAsks) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (countsAsks) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// until is by when a call whose answer was lost can have happened: not after
// its retry was answered.
func (r *recorder) until(unknown []int, forever bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := int64(time.Since(r.begin))
	if forever {
		end = int64(time.Hour)
	}
	for _, i := range unknown {
		r.ops[i].Return = max(r.ops[i].Return, end)
	}
}

// round is some clients on a few keys of their own.
type round struct {
	*recorder
	w       *world
	workers []*worker
	proxies []*pgproxy.Proxy
	sweeper *worker
	sweeps  bool          // some calls are sweeps: what they may take makes the search long
	kill    chan struct{} // one for each backend that shall die

	mu        sync.Mutex
	positions map[string][]fencing.Position
	leases    []*fencing.Lease
}

func TestWhatManyClientsAreToldAgreesWithOneOrder(t *testing.T) {
	t.Parallel()
	budget := 6 * time.Second
	if longRun() {
		budget = time.Minute
	}
	want := []string{"commit committed", "commit replayed", "commit conflict", "commit stale", "commit closed", "commit unconfirmable", "commit unknown",
		"acquire acquired", "acquire closed", "close committed", "open opened"}
	if longRun() {
		want = append(want, "sweep swept")
	}
	inOneOrder(newWorld(t), budget, want...)
}

// inOneOrder goes on for the time that is given, and until each of the answers
// was told. It cannot be told in advance how long that takes on a busy machine, so
// there is much more time for it.
func inOneOrder(w *world, budget time.Duration, want ...string) {
	w.Helper()
	const clients = 6
	seen := map[string]int{}
	r := round{w: w, sweeper: w.operator(), sweeps: longRun()}
	for i := range clients {
		k, proxy := w.behindProxy(fmt.Sprint("client ", i), 2, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.Tracer = countsAsks{}
			cfg.ConnConfig.RuntimeParams["application_name"] = "fault"
		})
		r.workers, r.proxies = append(r.workers, k), append(r.proxies, proxy)
	}
	missing := func() (names []string) {
		for _, name := range want {
			if seen[name] == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	rounds := 0
	for begin := time.Now(); time.Since(begin) < budget || len(missing()) > 0 && time.Since(begin) < budget+2*time.Minute; rounds++ {
		r.recorder = &recorder{begin: time.Now(), seen: map[string]int{}}
		r.positions, r.leases, r.kill = map[string][]fencing.Position{}, nil, make(chan struct{}, clients)
		r.run(rounds, clients)
		for name, n := range r.seen {
			seen[name] += n
		}
		for _, ops := range keyModel.Partition(r.ops) {
			if result := porcupine.CheckOperationsTimeout(keyModel.ToModel(), ops, time.Minute); result != porcupine.Ok {
				slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
				for _, op := range ops {
					w.Logf("client %d, %d to %d µs: %+v: %+v", op.ClientId, op.Call/1000, op.Return/1000, op.Input, op.Output)
				}
				w.Fatalf("round %d: no order explains what the clients were told: %s", rounds, result)
			}
		}
	}
	w.Logf("%d rounds: %v", rounds, seen)
	if names := missing(); len(names) > 0 {
		w.Errorf("never told: %q", names)
	}
}

func (r *round) run(n, clients int) {
	r.w.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	keys := []string{fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n)}
	for _, key := range keys { // so that its epoch is known
		r.acquire(0, key, false)
	}
	var trouble, wg sync.WaitGroup
	trouble.Go(func() {
		for range r.kill {
			_, _ = r.w.admin.Exec(ctx, `select pg_terminate_backend(pid) from (select pid from pg_stat_activity
				where datname = current_database() and application_name = 'fault' and state <> 'idle' order by random() limit 1) x`)
		}
	})
	for client := range clients {
		seed := rng.Uint64()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, seed))
			for range 14 {
				key := keys[rng.IntN(len(keys))]
				// As many faults as there are calls, whatever time these take.
				switch rng.IntN(6) {
				case 0:
					r.proxies[client].DropNextCommitAnswer("")
				case 1:
					select {
					case r.kill <- struct{}{}:
					default:
					}
				}
				switch p := rng.IntN(24); {
				case p < 5:
					r.acquire(client, key, true)
				case p < 7:
					r.settle(client, asked{key: key, what: "close", step: "close", body: "-"}, rng)
				case p < 11:
					r.open(client, key)
				case p < 12 && r.sweeps:
					r.sweep(client, keys)
				default:
					r.settle(client, asked{key: key, what: "commit", step: fmt.Sprint("s", rng.IntN(4)), body: []string{"x", "x", "x", "y"}[rng.IntN(4)]}, rng)
				}
			}
		})
	}
	wg.Wait()
	close(r.kill)
	trouble.Wait()
	for _, l := range r.leases {
		_ = l.Release(ctx)
	}
}

// acquire takes over, as if the holder's time were over.
func (r *round) acquire(client int, key string, expire bool) {
	if expire {
		_, _ = r.w.admin.Exec(ctx, "update fenceline.lease set expires_at = clock_timestamp() - interval '1 s' where key = $1", key)
	}
	i, t := r.record(client, asked{key: key, what: "acquire"}, func(ctx context.Context) told {
		cfg := long
		cfg.Wait = 2 * time.Second
		lease, err := r.workers[client].Acquire(ctx, key, cfg)
		switch {
		case err == nil:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.positions[key] = append(r.positions[key], lease.Position())
			r.leases = append(r.leases, lease)
			return told{"acquired", lease.Position().Epoch, lease.Position().Token}
		case errors.Is(err, fencing.ErrClosed):
			return told{answer: "closed"}
		case errors.Is(err, fencing.ErrHeld), errors.Is(err, fencing.ErrBlocked):
			return told{answer: "no"}
		}
		return told{answer: "unknown"}
	})
	if t.answer == "unknown" {
		r.until([]int{i}, true)
	}
}

func (r *round) open(client int, key string) {
	i, t := r.record(client, asked{key: key, what: "open"}, func(ctx context.Context) told {
		epoch, err := r.workers[client].Open(ctx, key)
		switch {
		case err == nil:
			return told{answer: "opened", epoch: epoch}
		case errors.Is(err, fencing.ErrUnknownOutcome):
			return told{answer: "unknown"}
		}
		return told{answer: "failed"}
	})
	if t.answer == "unknown" {
		r.until([]int{i}, true)
	}
}

// sweep removes what may go, of all keys. It raises the floor of a key in one
// transaction, or in two where its fence was busy in the first, and takes its
// tombstone in a further one.
func (r *round) sweep(client int, keys []string) {
	call := time.Since(r.begin)
	_, err := r.sweeper.Sweep(ctx, fencing.SweepConfig{RetryWindow: time.Nanosecond, Residence: time.Nanosecond, Batch: 100_000})
	end := time.Since(r.begin)
	r.recorder.mu.Lock()
	defer r.recorder.mu.Unlock()
	for _, key := range keys {
		for range 3 {
			r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: asked{key: key, what: "sweep"}, Call: int64(call), Output: told{answer: "swept"}, Return: int64(end)})
		}
	}
	if err == nil {
		r.seen["sweep swept"]++
	}
}

// settle asks until there is an answer, under a position that somebody has or
// had, or that nobody ever had.
func (r *round) settle(client int, a asked, rng *rand.Rand) {
	r.mu.Lock()
	known := r.positions[a.key]
	pos := known[len(known)-1]
	r.mu.Unlock()
	switch p := rng.IntN(12); {
	case p < 4:
		pos = known[rng.IntN(len(known))]
	case p == 4 && a.what == "commit":
		pos.Token += 1000
	}
	a.epoch, a.token = pos.Epoch, pos.Token
	batch := rng.IntN(2) == 0
	var lost []int
	for range 20 {
		i, t := r.record(client, a, func(ctx context.Context) told {
			if a.what == "close" {
				c, err := r.workers[client].Fences.Close(ctx, pos)
				return told{answer: answerOf(c.Replayed, err)}
			}
			var receipt fencing.Receipt
			var err error
			if batch {
				receipt, err = r.workers[client].commitBatch(pos, content(a.step, a.body))
			} else {
				receipt, err = r.workers[client].commit(pos, content(a.step, a.body))
			}
			return told{answer: answerOf(receipt.Replayed, err)}
		})
		switch t.answer {
		case "failed":
		case "unknown":
			lost = append(lost, i)
		default:
			r.until(lost, false)
			return
		}
	}
	r.until(lost, true)
}
