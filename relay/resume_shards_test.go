package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/outbox"
)

func instance(name string) Config {
	cfg := small()
	cfg.Name, cfg.LeaseTTL = name, 2*time.Second
	return cfg
}

// Streams of all shards are held, retried and skipped while instances come and
// go, so that their shards move with every step.
func TestHeldStreamsMoveWithTheirShards(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	const n = 12
	var keys []*producer
	shards := map[int]bool{}
	for i := range n {
		p := newProducer(t, pool, fmt.Sprint("k", i))
		p.publish("a", "1", "bad", "3")
		shards[outbox.Shard(p.key)] = true
		keys = append(keys, p)
	}
	if len(shards) < 6 {
		t.Fatalf("the keys are in %d shards", len(shards))
	}
	one := startRelay(t, pool, seat{kafka}, instance("one"))
	for _, p := range keys {
		isHeld(t, pool, "a", p.key)
	}
	two := startRelay(t, pool, seat{kafka}, instance("two"))
	bad.set()
	for i, p := range keys {
		p.publish("a", "4", "5")
		if i%3 == 0 {
			skip(t, pool, "a", p.key, 3)
		} else {
			retry(t, pool, "a", p.key)
		}
		if i == n/3 {
			one.end()
		}
	}
	three := startRelay(t, pool, seat{kafka}, instance("three"))
	for _, p := range keys {
		p.publish("a", "6")
	}
	for _, p := range keys {
		isGone(t, pool, "a", p.key)
	}
	two.end()
	for _, p := range keys {
		p.publish("a", "7")
	}
	patiently(t, "all is published", func() bool {
		last := 0
		for _, r := range kafka.log("a") {
			if string(r.Payload) == "7" {
				last++
			}
		}
		return last >= n
	})
	three.end()
	log := kafka.log("a")
	if got := complete(t, log); got != 7*n {
		t.Errorf("%d seqs are covered, not %d", got, 7*n)
	}
	for i, p := range keys {
		want := []string{"1", "bad", "3", "4", "5", "6", "7"}
		if i%3 == 0 {
			want = []string{"1", "skip 2-3", "4", "5", "6", "7"}
		}
		if got := said(of(log, p.key)); !slices.Equal(got, want) {
			t.Errorf("%s: published %q", p.key, got)
		}
	}
}

// The row goes under the token of the stream's shard: an instance that has lost
// it can't delete what another one is holding.
func TestAnInstanceThatHasLostAShardCannotSettleItsStreams(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	p := newProducer(t, pool, "k")
	p.publish("a", "bad", "2")
	cfg := small()
	cfg.LeaseTTL = 2 * time.Second
	armed := make(chan struct{})
	stolen := false
	cfg.signals.crash = func(point string) bool {
		if point == "settle held" && !stolen {
			select {
			case <-armed:
				stolen = true
				seize(t, pool, outbox.Shard("k"), cfg.LeaseTTL)
			default:
			}
		}
		if point == "settled held" && query[bool](t, pool, "select holder = 'other' and expires_at > clock_timestamp() from fenceline.lease where key = $1", ShardKey(outbox.Shard("k"))) {
			t.Error("it was settled under a token that is not the newest")
		}
		return false
	}
	r := startRelay(t, pool, kafka, cfg)
	isHeld(t, pool, "a", "k")
	bad.set()
	close(armed)
	retry(t, pool, "a", "k")
	// The other one does nothing; when its lease has expired, the relay comes back.
	isGone(t, pool, "a", "k")
	r.end()
	if !stolen {
		t.Error("the shard was never lost")
	}
	if n := query[int](t, pool, "select count(*) from fenceline.relay_audit where action = 'resumed'"); n != 1 {
		t.Errorf("resumed %d times", n)
	}
	if n := complete(t, kafka.log("a")); n != 2 {
		t.Errorf("published %q", said(kafka.log("a")))
	}
}

// Each shard has a cursor of its own: what is behind one isn't behind another.
func TestARepublishAsksTheCursorOfTheKeysOwnShard(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	a, b := newProducer(t, pool, "a"), newProducer(t, pool, "b")
	if outbox.Shard("a") == outbox.Shard("b") {
		t.Fatal("the keys share a shard")
	}
	a.publish("a", "a1")
	b.publish("a", "b1")
	published(t, pool, kafka, "a", "b1")
	patiently(t, "the cursor is stored", func() bool { return checkpointsOf(t, pool) > 0 })
	a.publish("a", "a2")
	b.publish("a", "b2")
	store(t, pool, outbox.Shard("a"))
	copies, report := again(t, pool, RepublishConfig{FromPos: 1}, "a")
	got := said(copies.log("a"))
	slices.Sort(got)
	if !slices.Equal(got, []string{"a1", "a2", "b1"}) || len(report.Left) != 1 || report.Left[0].Reason != LeftUnpublished || report.Left[0].Count != 1 {
		t.Errorf("published %q, left %+v", got, report.Left)
	}
}

// store moves one shard's cursor to where the database is.
func store(t *testing.T, pool *pgxpool.Pool, shard int) {
	t.Helper()
	_, err := pool.Exec(bg, `insert into fenceline.relay_checkpoint (shards, epoch, token, s1, low, pair_low, pair_xid)
		values (array[$1::smallint], 1, 1, pg_current_snapshot(), 0, 0, '3')`, shard)
	if err != nil {
		t.Fatal(err)
	}
}

// Rows that append can't have written are held and named; an operator gives them
// up, and what follows goes on.
func TestARowThatNobodyCanPublishIsHeldNamedAndSkipped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change, reason string
		want           []string
	}{
		"headers": {"headers = '{\"a\": 1}'", "its headers are not a list", []string{"1", "skip 2-2", "3"}},
		// No consumer could place a marker for it: nothing is sent.
		"epoch of 0": {"epoch = 0", "its epoch is 0", []string{"1", "3"}},
		"no token":   {"token = -1", "its token is -1", []string{"1", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a", "b")
			p, other := newProducer(t, pool, "k"), newProducer(t, pool, "other")
			p.publish("a", "1", "2", "3")
			if _, err := pool.Exec(bg, "update fenceline.outbox set "+c.change+" where seq = 2"); err != nil {
				t.Fatal(err)
			}
			r := startRelay(t, pool, kafka, small())
			isHeld(t, pool, "a", "k")
			other.publish("a", "other")
			patiently(t, "the rest flows", func() bool { return kafka.has("a", "other") })
			if reason := query[string](t, pool, "select reason from fenceline.relay_held"); len(reason) < len(c.reason) || reason[:len(c.reason)] != c.reason {
				t.Errorf("held because %q", reason)
			}
			// A retry changes nothing.
			retry(t, pool, "a", "k")
			patiently(t, "it is held again", func() bool {
				return query[bool](t, pool, "select exists (select from fenceline.relay_audit where action = 'held again')") && heldState(t, pool, "a", "k") == "held"
			})
			skip(t, pool, "a", "k", 0)
			isGone(t, pool, "a", "k")
			r.end()
			if got := said(of(kafka.log("a"), "k")); !slices.Equal(got, c.want) {
				t.Errorf("published %q, want %q", got, c.want)
			}
		})
	}
}
