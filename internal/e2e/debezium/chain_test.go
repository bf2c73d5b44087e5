//go:build debezium

package debezium

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

// writer commits under one key until it is told to end: every commit twice, as
// after an answer that was lost, and with a takeover now and then.
type writer struct {
	s      *stand
	key    string
	tokens int // grants so far
}

func (w *writer) run(ctx context.Context) error {
	var lease *fencing.Lease
	for n := 0; ctx.Err() == nil; n++ {
		if n%15 == 0 {
			old := lease
			var err error
			if lease, err = w.takeOver(ctx, old); err != nil || ctx.Err() != nil {
				return err
			}
		}
		step := fmt.Sprintf("%s %d", w.key, n)
		event := func(i int) outbox.Event {
			return outbox.Event{Topic: w.s.topics[i%len(w.s.topics)], Type: "counted", Payload: []byte(step), Headers: []outbox.Header{{Name: "n", Value: step}}}
		}
		for range 2 {
			if err := commit(context.WithoutCancel(ctx), lease, step, event(0), event(1), event(1)); err != nil {
				return err
			}
		}
		pause(ctx, 60*time.Millisecond) // so that a busy machine follows
	}
	if lease == nil {
		return nil
	}
	return lease.Release(context.WithoutCancel(ctx))
}

// takeOver ends the holder's lease in the database, as if its time were over,
// and gives the key to another; the old holder's next commit must be refused.
func (w *writer) takeOver(ctx context.Context, old *fencing.Lease) (*fencing.Lease, error) {
	if old != nil {
		if _, err := w.s.pool.Exec(ctx, "update fenceline.lease set expires_at = '-infinity' where key = $1", w.key); err != nil {
			return nil, notIf(ctx, err)
		}
	}
	lease, err := w.s.fences.Campaign(ctx, w.key, fencing.LeaseConfig{TTL: time.Minute})
	if err != nil {
		return nil, notIf(ctx, err)
	}
	w.tokens++
	if old != nil {
		_, err := w.s.fences.Commit(ctx, old.Position(), fencing.Content{Step: "late", Type: "text/plain", Bytes: []byte("late")}, func(ctx context.Context, tx fencing.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{Topic: w.s.topics[0], Type: "late", Payload: []byte("late")})
		})
		if err == nil || ctx.Err() == nil && !errors.Is(err, fencing.ErrStale) {
			return nil, fmt.Errorf("the old holder's commit: %v", err)
		}
	}
	return lease, nil
}

func notIf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// write starts writers of n keys.
func (s *stand) write(n int) (stop func()) {
	var all []*writer
	var stops []func()
	for i := range n {
		w := &writer{s: s, key: fmt.Sprintf("writer/%d", i)}
		all = append(all, w)
		stops = append(stops, s.start(w.key, w.run))
	}
	return sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
		for _, w := range all {
			if w.tokens < 2 {
				s.t.Errorf("%s was never taken over", w.key)
			}
		}
	})
}

// more waits until so many events more were committed.
func (s *stand) more(n int) {
	s.t.Helper()
	from := s.one("select coalesce(pg_sequence_last_value('fenceline.outbox_pos'), 0)::text")
	// A rotation makes positions jump, so rows are counted.
	s.until("true", "select (count(*) >= $1)::text from fenceline.outbox where pos > $2", n, from)
}

// A producer that commits through fences, is retried and taken over; a
// connector that is killed, and one that is restarted, while the outbox goes on
// in another partition; a key that is closed and opened again: the consumer has
// applied what was committed, once and in order, and has refused copies.
func TestAChainWithDebeziumInItLosesNothingAndAppliesNothingTwice(t *testing.T) {
	s := newStand(t, 2)
	a, b := s.topics[0], s.topics[1]
	lives := func(payload string) {
		lease := s.acquire("lives", time.Minute)
		s.commit(lease, payload, outbox.Event{Topic: a, Type: "t", Payload: []byte(payload)}, outbox.Event{Topic: b, Type: "t"})
		_, err := lease.Close(t.Context())
		s.ok(err)
		_, err = s.fences.Open(t.Context(), "lives")
		s.ok(err)
	}
	lives("one")
	lives("two")
	stop := s.write(3)
	s.more(150)
	connector := s.connect()
	seen := s.consume()
	lives("three")
	s.more(150)
	s.rotate()
	s.more(150)
	// A copy comes again only if the connector had not written down what it had
	// published: killed often enough, it is caught so.
	for kills := 0; ; kills++ {
		s.more(60)
		s.ok(connector.Kill(t.Context()))
		s.more(60)
		s.ok(connector.Restart(t.Context()))
		s.settled()
		if seen.count(consumer.Duplicate) > 0 {
			break
		}
		if kills == 5 {
			t.Fatal("no copy came twice")
		}
	}
	s.ok(connector.Restart(t.Context()))
	lives("four")
	s.more(60)
	stop()
	s.same()
	s.inOrder()
	if got := s.one("select count(distinct tableoid)::text from fenceline.outbox"); got != "2" {
		t.Errorf("events in %s partitions", got)
	}
	if got := seen.count(consumer.Absorbed); got < 8 {
		t.Errorf("%d end records were absorbed, want 8 at least", got)
	}
	// What the slot has confirmed, its heartbeat having taken it along, is
	// published: retention takes the partition.
	_, err := relay.Follow(t.Context(), s.pool, relay.FollowConfig{Slot: slot, Wait: patience, AllowUnsafeDatabase: true, Logger: quiet})
	s.ok(err)
	report, err := relay.Retain(t.Context(), s.pool, "", relay.RetentionConfig{Keep: time.Microsecond, RotateAge: time.Hour, LockTimeout: 10 * time.Second})
	if err != nil || !slices.Equal(report.Dropped, []string{"outbox_0"}) {
		t.Errorf("retention: %+v, %v", report, err)
	}
	t.Logf("%s events, %d records published, %d copies refused", s.one("select count(*)::text from fenceline.outbox"), s.published(), seen.count(consumer.Duplicate)+seen.count(consumer.Stale))
}

// settled waits until what is committed now is applied.
func (s *stand) settled() {
	s.t.Helper()
	last := s.one("select max(pos)::text from fenceline.outbox where kind = 'data'")
	s.until("0", `select count(*)::text from fenceline.outbox o where kind = 'data' and pos <= $1::bigint
		and not exists (select from applied a where (a.topic, a.key, a.epoch, a.seq) = (o.topic, o.key, o.epoch, o.seq))`, last)
}

// rotate has the outbox go on in its next partition.
func (s *stand) rotate() {
	s.t.Helper()
	step := ""
	s.eventually(func() bool {
		step = s.one("select coalesce(fenceline.outbox_rotate('0', 1, '1s'), '')")
		return step == "switched"
	}, func() string { return "the rotation stands at " + step })
}

// inOrder: the first copies of each stream, whoever sent them, are in order and
// without a hole.
func (s *stand) inOrder() {
	s.t.Helper()
	type stream struct{ topic, key string }
	type place struct{ epoch, seq int64 }
	last := map[stream]place{}
	read := consumer.Mapping(consumer.Debezium(consumer.DebeziumConfig{}))
	for _, topic := range s.topics {
		for _, r := range kafkatest.Records(s.t, s.addr, topic) {
			d := read.Delivery(at(r))
			k, l := stream{d.Stream, d.Key}, last[stream{d.Stream, d.Key}]
			switch {
			case d.Malformed != nil:
				s.t.Errorf("%s %d/%d: %v", topic, r.Partition, r.Offset, d.Malformed)
			case d.Epoch < l.epoch || d.Epoch == l.epoch && d.Seq <= l.seq: // a copy
			case d.Epoch == l.epoch && d.Seq == l.seq+1, d.Epoch > l.epoch && d.Seq == 1 && (d.Prev == nil) == (l.epoch == 0) && (d.Prev == nil || *d.Prev == (outbox.Prev{Epoch: l.epoch, Seq: l.seq})):
				last[k] = place{d.Epoch, d.Seq}
			default:
				s.t.Errorf("%s %q: the first copy of (%d, %d) comes behind (%d, %d)", topic, d.Key, d.Epoch, d.Seq, l.epoch, l.seq)
				last[k] = place{d.Epoch, d.Seq}
			}
		}
	}
}
