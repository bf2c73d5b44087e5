package fencing_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgproxy"
)

// Many clients take over, commit, retry, close and open the same few keys while
// backends are killed and answers are lost. What they were told must be what
// one client could have been told who does all of it in some order that agrees
// with the clock; an answer that was lost forks: it has happened or it has not.

// asked is one call.
type asked struct {
	key, what  string // acquire, commit, close, open
	epoch      int64
	token      int64
	step, body string
}

// told is its answer.
type told struct {
	answer       string // "unknown" for one that was lost
	epoch, token int64
}

// keyState is what is true of a key, in a comparable form.
type keyState struct {
	epoch, token int64
	reopened     bool // the epoch is a larger one than this, which nobody was told yet
	closed       bool
	receipts     string // sorted, one line each: epoch/token/step body
}

func (s keyState) body(a asked) (string, bool) {
	var name, body string
	for line := range lines(s.receipts) {
		if _, err := fmt.Sscan(line, &name, &body); err == nil && name == attemptName(a) {
			return body, true
		}
	}
	return "", false
}

func lines(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(s) > 0 {
			i := 0
			for s[i] != '\n' {
				i++
			}
			if !yield(s[:i]) {
				return
			}
			s = s[i+1:]
		}
	}
}

func attemptName(a asked) string { return fmt.Sprintf("%d/%d/%s", a.epoch, a.token, a.step) }

func (s keyState) with(a asked) keyState {
	all := append(slices.Collect(lines(s.receipts)), attemptName(a)+" "+a.body)
	slices.Sort(all)
	s.receipts = ""
	for _, line := range all {
		s.receipts += line + "\n"
	}
	return s
}

// learn notes the epoch that somebody was told, where it is the first time.
func (s keyState) learn(epoch int64) keyState {
	if s.epoch == 0 || s.reopened && epoch > s.epoch {
		s.epoch, s.reopened = epoch, false
	}
	return s
}

// commit is the gate, as the documentation has it.
func (s keyState) commit(a asked) (string, keyState) {
	if body, ok := s.body(a); ok {
		if body == a.body {
			return "replayed", s
		}
		return "conflict", s
	}
	switch {
	case s.reopened && a.epoch <= s.epoch:
		return "stale", s
	case s.reopened, s.epoch == 0, a.epoch > s.epoch, a.epoch == s.epoch && a.token > s.token:
		return "unconfirmable", s
	case s.closed && a.epoch == s.epoch:
		return "closed", s
	case a.epoch < s.epoch || a.token < s.token:
		return "stale", s
	}
	if a.what == "close" {
		s.closed = true
	}
	return "committed", s.with(a)
}

// step gives the states after a call with this answer; none if it cannot be.
func (s keyState) step(a asked, t told) []any {
	var next keyState
	var answer string
	switch a.what {
	case "acquire":
		next = s
		switch {
		case t.answer == "no": // whether a lease is free is not the fence's business
			return []any{s}
		case s.closed:
			answer = "closed"
		case t.answer == "unknown" && s.epoch == 0:
			return []any{s}
		default:
			answer = "acquired"
			next.token++
			if t.answer == answer {
				next = next.learn(t.epoch)
			}
			if t.answer == answer && (t.epoch != next.epoch || t.token != next.token) {
				return nil
			}
		}
	case "open":
		next, answer = s, "opened"
		if s.closed {
			next.closed, next.reopened, next.token = false, true, 0
		}
		if t.answer == answer {
			if next = next.learn(t.epoch); t.epoch != next.epoch {
				return nil
			}
		}
	default:
		answer, next = s.commit(a)
	}
	if t.answer == "unknown" {
		return []any{s, next}
	}
	if t.answer != answer {
		return nil
	}
	return []any{next}
}

var keyModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(asked).key
			byKey[key] = append(byKey[key], op)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, output any) []any { return state.(keyState).step(input.(asked), output.(told)) },
}

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
	return "unknown" // or nothing happened, which is one half of unknown
}

// recorder is the history of one round. All clients share it.
type recorder struct {
	begin time.Time

	mu   sync.Mutex
	ops  []porcupine.Operation
	seen map[string]int
}

// record does one call, and returns the index of its entry.
func (r *recorder) record(client int, a asked, do func() told) (int, told) {
	call := time.Since(r.begin)
	t := do()
	end := time.Since(r.begin)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: a, Call: int64(call), Output: t, Return: int64(end)})
	r.seen[a.what+" "+t.answer]++
	return len(r.ops) - 1, t
}

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

	mu        sync.Mutex
	positions map[string][]fencing.Position
	leases    []*fencing.Lease
}

func TestWhatManyClientsAreToldAgreesWithOneOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const clients = 6
	budget := 8 * time.Second
	if longRun() {
		budget = time.Minute
	}
	seen := map[string]int{}
	var workers []*worker
	var proxies []*pgproxy.Proxy
	for i := range clients {
		k, proxy := w.behindProxy(fmt.Sprint("client ", i), 2)
		workers, proxies = append(workers, k), append(proxies, proxy)
	}
	want := []string{"commit committed", "commit replayed", "commit conflict", "commit stale", "commit closed", "commit unconfirmable", "commit unknown", "acquire acquired", "acquire closed", "close committed", "open opened"}
	missing := func() (names []string) {
		for _, name := range want {
			if seen[name] == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	rounds := 0
	for begin := time.Now(); time.Since(begin) < budget || len(missing()) > 0 && time.Since(begin) < 3*budget; rounds++ {
		r := &round{recorder: &recorder{begin: time.Now(), seen: map[string]int{}}, w: w, workers: workers, proxies: proxies, positions: map[string][]fencing.Position{}}
		r.run(rounds, clients)
		for name, n := range r.seen {
			seen[name] += n
		}
		for _, ops := range keyModel.Partition(r.ops) {
			if result := porcupine.CheckOperationsTimeout(keyModel.ToModel(), ops, 30*time.Second); result != porcupine.Ok {
				slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
				for _, op := range ops {
					t.Logf("client %d, %d to %d µs: %+v: %+v", op.ClientId, op.Call/1000, op.Return/1000, op.Input, op.Output)
				}
				t.Fatalf("round %d: no order explains what the clients were told: %s", rounds, result)
			}
		}
	}
	t.Logf("%d rounds: %v", rounds, seen)
	if names := missing(); len(names) > 0 {
		t.Errorf("never told: %q", names)
	}
}

func (r *round) run(n, clients int) {
	r.w.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	keys := []string{fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n)}
	for _, key := range keys { // so that its epoch is known
		r.acquire(0, key, false)
	}
	stop := make(chan struct{})
	var trouble, wg sync.WaitGroup
	trouble.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			_, _ = r.w.admin.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and usename <> current_user and state <> 'idle' and random() < 0.05")
		}
	})
	for client := range clients {
		seed := rng.Uint64()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, seed))
			for range 14 {
				key := keys[rng.IntN(len(keys))]
				if rng.IntN(6) == 0 {
					r.proxies[client].DropNextCommitAnswer("")
				}
				switch p := rng.IntN(20); {
				case p < 4:
					r.acquire(client, key, true)
				case p < 5:
					r.settle(client, asked{key: key, what: "close", step: "close", body: "-"}, rng)
				case p < 8:
					r.open(client, key)
				default:
					r.settle(client, asked{key: key, what: "commit", step: fmt.Sprint("s", rng.IntN(4)), body: []string{"x", "x", "x", "y"}[rng.IntN(4)]}, rng)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
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
	a := asked{key: key, what: "acquire"}
	i, t := r.record(client, a, func() told {
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
	r.mayHaveHappened(client, a, i)
}

// mayHaveHappened adds a call beside the one at i, of which nobody knows:
// Acquire, Close and Open ask again by themselves when an answer is lost. A lease
// that was ended in between is then granted twice, and a close is replayed that
// nobody was told to be the first.
func (r *recorder) mayHaveHappened(client int, a asked, i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op := r.ops[i]
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: a, Call: op.Call, Output: told{answer: "unknown"}, Return: op.Return})
}

func (r *round) open(client int, key string) {
	a := asked{key: key, what: "open"}
	i, t := r.record(client, a, func() told {
		epoch, err := r.workers[client].Open(ctx, key)
		if err != nil {
			return told{answer: "unknown"}
		}
		return told{answer: "opened", epoch: epoch}
	})
	if t.answer == "unknown" {
		r.until([]int{i}, true)
	}
	r.mayHaveHappened(client, a, i)
}

// settle asks until there is an answer, under a position that somebody has or
// had, or that nobody ever had.
func (r *round) settle(client int, a asked, rng *rand.Rand) {
	r.mu.Lock()
	known := r.positions[a.key]
	pos := known[len(known)-1]
	r.mu.Unlock()
	switch p := rng.IntN(12); {
	case p < 2:
		pos = known[rng.IntN(len(known))]
	case p == 2 && a.what == "commit":
		pos.Token += 1000
	}
	a.epoch, a.token = pos.Epoch, pos.Token
	batch := rng.IntN(2) == 0
	var lost []int
	for range 20 {
		i, t := r.record(client, a, func() told {
			if a.what == "close" {
				c, err := r.workers[client].Close(ctx, pos)
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
		if a.what == "close" {
			r.mayHaveHappened(client, a, i)
		}
		if t.answer != "unknown" {
			r.until(lost, false)
			return
		}
		lost = append(lost, i)
	}
	r.until(lost, true)
}
