package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/consumertest"
	"github.com/fenceline/fenceline/outbox"
)

// tale is one random history: what is published and in which order, which copies
// come again or late, who reads when, and where it crashes.
type tale struct {
	*bench
	rnd    *rand.Rand
	log    *memory
	cfg    consumer.Config
	op     *consumer.Operator
	events map[string][]outbox.Record // of each key, in order, those of them that are events

	queue, held, past []outbox.Record
	poisoned          map[string]bool // is rejected until somebody mends the handler
	given             map[string]bool // is rejected for ever, and to be given up
	mended            chan struct{}

	members []*taleMember
	runs    *pgxpool.Pool // the members'; what is ended of it is not the test's own
}

// taleMember is one process of the group.
type taleMember struct {
	source atomic.Pointer[memorySource]
	cancel context.CancelFunc
	done   chan error
}

func name(r *outbox.Record) string { return fmt.Sprintf("%s/%d/%d", r.Key, r.Epoch, r.Seq) }

func newTale(t *testing.T, seed uint64, policy consumer.Policy) *tale {
	b := newBench(t)
	s := &tale{bench: b, rnd: rand.New(rand.NewPCG(seed, uint64(len(policy)))), log: newMemory("t"), events: map[string][]outbox.Record{},
		poisoned: map[string]bool{}, given: map[string]bool{}, mended: make(chan struct{})}
	pool := b.pool.Config().Copy()
	pool.ConnConfig.RuntimeParams["application_name"] = "member"
	var err error
	if s.runs, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.runs.Close)
	t.Cleanup(func() {
		for _, m := range s.members { // of a test that has failed on the way
			m.cancel()
			_ = <-m.done //nolint:staticcheck // its error was of interest while the test went on
		}
	})
	s.cfg = b.config()
	s.cfg.Policy, s.cfg.PollInterval, s.cfg.DrainTimeout, s.cfg.BatchSize = policy, 5*time.Millisecond, 20*time.Millisecond, 1+s.rnd.IntN(12)
	if s.rnd.IntN(2) == 0 {
		s.cfg.Limits = consumer.Limits{KeyRecords: 3}
	}
	s.log.page = 1 + s.rnd.IntN(20)
	if s.op, err = consumer.NewOperator(context.Background(), b.pool, consumer.OperatorConfig{Consumer: s.cfg.Name}); err != nil {
		t.Fatal(err)
	}
	s.write()
	return s
}

// write makes up the records: two lives of three keys, mixed, in order.
func (s *tale) write() {
	var lanes [][]outbox.Record
	for k := range 3 {
		stream := consumertest.NewStream("t", fmt.Sprint("k", k))
		var lane []outbox.Record
		const n = 14
		for i := range n {
			if i == n/2 && s.rnd.IntN(2) == 0 {
				lane = append(lane, stream.End())
				stream.NewLife()
			}
			if s.rnd.IntN(6) == 0 {
				stream.Takeover()
			}
			lane = append(lane, stream.Event("x", []byte("x")))
		}
		for i := range lane {
			if lane[i].Kind == outbox.KindData {
				s.events[lane[i].Key] = append(s.events[lane[i].Key], lane[i])
			}
		}
		// Not the first, which is where the consumer joins, nor the last, by which
		// the end is known.
		es := s.events[lane[0].Key]
		s.poisoned[name(&es[1+s.rnd.IntN(n/2-1)])] = true
		s.given[name(&es[n/2+s.rnd.IntN(n/2-1)])] = true
		lanes = append(lanes, lane)
	}
	for _, lane := range lanes {
		s.queue = append(s.queue, lane[0])
	}
	for at := []int{1, 1, 1}; ; {
		var open []int
		for k := range lanes {
			if at[k] < len(lanes[k]) {
				open = append(open, k)
			}
		}
		if len(open) == 0 {
			return
		}
		k := open[s.rnd.IntN(len(open))]
		s.queue = append(s.queue, lanes[k][at[k]])
		at[k]++
	}
}

func (s *tale) handle(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
	if _, err := tx.Exec(ctx, "insert into applied (key, epoch, seq, by) values ($1, $2, $3, 'x')", d.Key, d.Epoch, d.Seq); err != nil {
		return err
	}
	switch n := name(&d.Record); {
	case s.given[n]:
		return consumer.Reject(errors.New("never"))
	case s.poisoned[n]:
		select {
		case <-s.mended:
		default:
			return consumer.Reject(errors.New("not yet"))
		}
	}
	return nil
}

func (s *tale) send(r outbox.Record) {
	s.past = append(s.past, r)
	s.log.publish(r)
}

func (s *tale) start() {
	ctx, cancel := context.WithCancel(context.Background())
	m := &taleMember{cancel: cancel, done: make(chan error, 1)}
	m.source.Store(s.log.source())
	go func() {
		for {
			err := consumer.Run(ctx, s.runs, m.source.Load(), s.cfg, consumer.HandlerFunc(s.handle))
			// A start needs the database: a process whose session is ended there, or that
			// gets one that was ended before, ends and is started again.
			if err != nil && ctx.Err() == nil && starting(err) {
				m.source.Store(s.log.source())
				continue
			}
			m.done <- err
			return
		}
	}()
	s.members = append(s.members, m)
}

// starting says that it is what Run looks at in the database when it starts.
func starting(err error) bool {
	return slices.ContainsFunc([]string{"schema: look for", "schema: read the version", "look at the session's encoding"}, func(s string) bool { return strings.Contains(err.Error(), s) })
}

func (s *tale) stop(i int) {
	s.t.Helper()
	m := s.members[i]
	s.members = slices.Delete(s.members, i, i+1)
	m.cancel()
	select {
	case err := <-m.done:
		if err != nil && !starting(err) {
			s.t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute):
		s.t.Fatal("Run did not return")
	}
}

// commits says whether commits of offsets reach Kafka.
func (s *tale) commits(ok bool) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.commitFails = !ok
}

// step is one thing that happens.
func (s *tale) step() {
	any := func() int { return s.rnd.IntN(len(s.members)) }
	switch n := s.rnd.IntN(20); {
	case n < 7 && len(s.queue) > 0:
		for range 1 + s.rnd.IntN(4) {
			if len(s.queue) == 0 {
				break
			}
			r := s.queue[0]
			s.queue = s.queue[1:]
			if first := r.ID == s.events[r.Key][0].ID; len(s.past) >= 3 && s.rnd.IntN(7) == 0 && !first {
				// Retention was faster; it is published again later. Not the first of a key,
				// where the consumer joins.
				s.held = append(s.held, r)
			} else {
				s.send(r)
			}
		}
	case n < 9 && len(s.past) > 0:
		s.send(s.past[s.rnd.IntN(len(s.past))])
	case n < 10 && len(s.held) > 0:
		i := s.rnd.IntN(len(s.held))
		s.send(s.held[i])
		s.held = slices.Delete(s.held, i, i+1)
	case n < 13 && len(s.members) < 2:
		s.start()
	case n < 14 && len(s.members) > 0:
		s.stop(any())
	case n < 15 && len(s.members) > 0: // crashes with the database ahead of Kafka
		s.commits(false)
		s.stop(any())
		s.commits(true)
	case n < 17: // crashes in the middle of transactions
		s.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'member' and xact_start is not null")
	case n < 18 && len(s.members) > 0:
		s.members[any()].source.Load().tryRevoke()
	case n < 19: // the group's offset goes back, or expires
		s.log.mu.Lock()
		s.log.committed = s.rnd.Int64N(max(s.log.committed, 0)+1) - 1
		s.log.mu.Unlock()
	default: // somebody runs
		time.Sleep(time.Duration(s.rnd.IntN(3)) * time.Millisecond)
	}
}

// end brings everything out that is left, mends the handler, lets an operator do
// what there is to do, and waits until done says so.
func (s *tale) end(done func() bool) {
	s.t.Helper()
	for _, r := range append(s.queue, s.held...) {
		s.send(r)
	}
	close(s.mended)
	s.start() // whatever has become of the others
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(s.one(`select coalesce(string_agg(format('%s %s/%s missed %s end %s waits %s blocked %s unstored %s recheck %s', key, epoch, seq, missed, end_seq, waiting_epoch, blocked, unstored, recheck), E'\n'), '') from fenceline.guard`))
			s.t.Log(s.one(`select coalesce(string_agg(format('parked %s %s/%s %s %s', key, epoch, seq, kind, reason), E'\n' order by key, epoch, seq), '') from fenceline.parked`))
			for key := range s.events {
				s.t.Logf("%s\n got %v\nfold %v\npoisoned %v given %v", key, s.got(key), s.fold(key), s.poisoned, s.given)
			}
			s.t.Log(s.one(`select coalesce(string_agg(a::text, E'\n' order by id), '') from fenceline.consumer_audit a`))
			s.t.Log(s.one(`select coalesce(string_agg(o::text, E'\n'), '') from fenceline.consumer_offset o`))
		}
	})
	note := consumer.Note{Who: "tale", Why: "a test"}
	s.eventually("it has ended", func() bool {
		for key, es := range s.events {
			k := consumer.StreamKey{Stream: "t", Key: key}
			for i := range es {
				e := &es[i]
				// What an operator may not do yet is refused, and done later.
				switch n := name(e); {
				case s.given[n] && s.cfg.Policy == consumer.Strict && s.at(key, e, "parked"):
					if s.op.Discard(context.Background(), k, e.Epoch, e.Seq, e.Seq, note) != nil && e.Seq == 1 &&
						s.one("select exists (select from fenceline.guard where key = $1 and blocked = 'failing' and seq = end_seq)::text", key) == "true" {
						// It begins a life that the guard is not in yet, and nothing of the
						// one before is missing: adopting would give that up.
						_, _ = s.op.Adopt(context.Background(), k, e.Epoch, e.Seq, note)
					}
				case s.given[n] && s.at(key, e, "dead"):
					_ = s.op.DiscardDead(context.Background(), k, e.Epoch, e.Seq, note)
				case s.poisoned[n] && s.cfg.Policy == consumer.Strict && s.at(key, e, "parked"):
					_ = s.op.Retry(context.Background(), k, note)
				case s.poisoned[n] && s.at(key, e, "dead"):
					_ = s.op.RetryDead(context.Background(), k, e.Epoch, e.Seq, note)
				}
			}
		}
		return done()
	})
	for len(s.members) > 0 {
		s.stop(0)
	}
}

// at tells whether the event is in a table, for an operator to decide.
func (s *tale) at(key string, e *outbox.Record, table string) bool {
	open := "discarded_at is null"
	if table == "parked" {
		open = "reason = 'failing'"
	}
	return s.one("select exists (select from fenceline."+table+" where key = $1 and epoch = $2 and seq = $3 and "+open+")::text", key, e.Epoch, e.Seq) == "true"
}

func (s *tale) got(key string) (out []string) {
	rows, err := s.pool.Query(context.Background(), "select key || '/' || epoch || '/' || seq from applied where key = $1 order by n", key)
	if err == nil {
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// fold is what the events leave when each is applied once, in order.
func (s *tale) fold(key string) (out []string) {
	for i := range s.events[key] {
		if n := name(&s.events[key][i]); !s.given[n] {
			out = append(out, n)
		}
	}
	return out
}

func tales(t *testing.T, policy consumer.Policy, check func(t *testing.T, s *tale)) {
	seeds := uint64(4)
	if os.Getenv("FENCELINE_LONG") != "" {
		seeds = 150
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := newTale(t, seed, policy)
			for range 60 {
				s.step()
			}
			check(t, s)
		})
	}
}

func TestWhateverHappensAStrictStreamEndsAsAPlainFoldOfWhatWasNotGivenUp(t *testing.T) {
	tales(t, consumer.Strict, func(t *testing.T, s *tale) {
		s.end(func() bool {
			for key := range s.events {
				if len(s.got(key)) < len(s.fold(key)) {
					return false
				}
			}
			return true
		})
		for key := range s.events {
			if got, want := s.got(key), s.fold(key); !slices.Equal(got, want) {
				t.Errorf("applied %v\nwant    %v", got, want)
			}
		}
	})
}

func TestWhateverHappensAStateStreamEndsWithTheNewestAndNeverGoesBack(t *testing.T) {
	tales(t, consumer.State, func(t *testing.T, s *tale) {
		s.end(func() bool {
			for key := range s.events {
				got, want := s.got(key), s.fold(key)
				if len(got) == 0 || got[len(got)-1] != want[len(want)-1] {
					return false
				}
			}
			return s.one("select count(*)::text from fenceline.dead where discarded_at is null") == "0"
		})
		for key := range s.events {
			want := s.fold(key)
			last := -1
			for _, n := range s.got(key) {
				at := slices.Index(want, n)
				if at <= last {
					t.Errorf("%s was applied behind or again behind %v", n, s.got(key))
				}
				last = at
			}
			if last != len(want)-1 {
				t.Errorf("the last that was applied is not the newest: %v", s.got(key))
			}
		}
	})
}
