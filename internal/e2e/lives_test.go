package e2e

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/fencing"
)

const (
	applied = "select coalesce(string_agg(payload, ' ' order by n), '') from applied where topic = $1"
	parked  = "select count(*)::text from fenceline.parked"
)

// A strict consumer applies the first event of a life only when it is proven
// that nothing of the one before is missing: by prev, which a key that was
// opened again remembers; or, when its memory was swept, by the end record that
// it has seen, and the history in which both lives are.
func TestAStrictConsumerFollowsAKeyFromLifeToLife(t *testing.T) {
	for name, start := range map[string]consumer.Start{"from the first seen": consumer.FromFirstSeen, "from the origin": consumer.FromOrigin} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, 2)
			a, b := c.topics[0], c.topics[1]
			c.relay()
			c.consume(start)
			first := c.acquire("k")
			c.commit(first, "1", a, b)
			c.commit(first, "2", a)
			_, err := first.Close(t.Context())
			c.ok(err)
			// The second life has nothing to say in a.
			epoch, err := c.fences.Open(t.Context(), "k")
			c.ok(err)
			second := c.acquire("k")
			c.commit(second, "3", b)
			_, err = second.Close(t.Context())
			c.ok(err)
			for topic, want := range map[string][2]string{a: {"1 2", "1 1"}, b: {"1 3", "2 2"}} {
				c.until(want[0], applied, topic)
				c.until(want[1], "select coalesce((select seq || ' ' || end_seq from fenceline.guard where stream = $1 and epoch = $2), 'none')", topic, epoch)
			}
			// The third remembers nothing.
			c.sweepTombstone()
			third := c.acquire("k")
			c.commit(third, "4", a, b)
			if got := c.one("select count(*)::text from fenceline.outbox where epoch = $1 and seq = 1 and history is not null and prev_epoch is null", third.Position().Epoch); got != "2" {
				t.Errorf("%s records without prev", got)
			}
			c.until("1 2 4", applied, a)
			c.until("1 3 4", applied, b)
			if n := c.one(parked); n != "0" {
				t.Errorf("%s records are parked", n)
			}
		})
	}
}

// The same without end records: then nothing proves the third life, and a strict
// consumer must wait. This is what they are for.
func TestWithoutEndRecordsALifeBehindASweptTombstoneWaits(t *testing.T) {
	c := newChain(t, 1)
	_, err := c.pool.Exec(t.Context(), `do $$ begin execute replace(pg_get_functiondef('fenceline.close'::regproc), '._streams(p_key) loop', '._streams(p_key) where false loop'); end $$`)
	c.ok(err)
	c.relay()
	c.consume(consumer.FromFirstSeen)
	first := c.acquire("k")
	c.commit(first, "1", c.topics[0])
	c.until("1", applied, c.topics[0])
	_, err = first.Close(t.Context())
	c.ok(err)
	if n := c.one("select count(*)::text from fenceline.outbox where kind = 'end'"); n != "0" {
		t.Fatalf("%s end records", n)
	}
	// The tombstone knows nothing of what is published: no record is its last.
	_, err = c.pool.Exec(t.Context(), "update fenceline.fence set end_xid = '3'")
	c.ok(err)
	c.sweepTombstone()
	c.commit(c.acquire("k"), "2", c.topics[0])
	c.until("1", parked)
	c.until("1", applied, c.topics[0])
}

// sweepTombstone sweeps until the relay's cursor lets the one tombstone go.
func (c *chain) sweepTombstone() {
	c.t.Helper()
	cfg := fencing.SweepConfig{RetryWindow: time.Microsecond, Residence: time.Microsecond}
	deadline := time.Now().Add(patience)
	for {
		r, err := c.fences.Sweep(c.t.Context(), cfg)
		c.ok(err)
		if r.Tombstones == 1 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("swept %+v\n%s", r, c.state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
