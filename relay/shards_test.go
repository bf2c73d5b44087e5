package relay

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

func TestAShardIsTheSameInGoAndInTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	for _, key := range []string{"k", "schlüssel", "fünf", "a longer key, of more than one block", "\u0001", strings.Repeat("x", 512)} {
		if got := query[int](t, pool, "select fenceline._shard($1)", key); got != outbox.Shard(key) {
			t.Errorf("%.20q: shard %d in the database, %d in Go", key, got, outbox.Shard(key))
		}
	}
	for n := range outbox.Shards {
		if got, ok := shardOf(ShardKey(n)); !ok || got != n {
			t.Errorf("the key %q is of shard %d, %v", ShardKey(n), got, ok)
		}
		if one := shardSet(0).with(n); !one.has(n) || one.len() != 1 || shardsOf(one.list()) != one {
			t.Errorf("the set of %d is %v", n, one.list())
		}
	}
	for _, key := range []string{"fenceline:relay", "fenceline:relay/", "fenceline:relay/64", "fenceline:relay/7", "fenceline:relay/retention", "fenceline:relay/-1", "other"} {
		if _, ok := shardOf(key); ok {
			t.Errorf("%q is taken for a shard's key", key)
		}
	}
}

// The stored cursors of the shards are torn apart, at random places, while
// events flow: each time the groups have to find together, and no row of any
// may fall between.
func TestShardsWithDifferentCursorsFindTogetherAndLoseNothing(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	m := &team{t, pool, kafka, quick()}
	var calls, crashes atomic.Int64
	m.cfg.PageSize, m.cfg.CheckpointEvery = 20, 10
	m.cfg.signals.crash = func(string) bool {
		return calls.Add(1)%200 == 0 && crashes.Add(1) <= 4
	}
	// Behind each join, and in front of the next snapshot, one event of every
	// other shard: whoever has the shards then must not miss it.
	var probes []*producer
	for i := range 12 {
		probes = append(probes, newProducer(t, pool, fmt.Sprint("probe ", i)))
	}
	var probed atomic.Int64
	m.cfg.signals.joined = func(string, string) {
		if probed.Load() >= 60 {
			return
		}
		for _, p := range probes {
			p.publish("a", "probe")
			probed.Add(1)
		}
	}
	end := writing(t, pool, "a", 6, 20*time.Millisecond)
	together := func() bool {
		return query[int](t, pool, "select coalesce((select cardinality(shards) from fenceline.relay_checkpoint order by n desc limit 1), 0)") == outbox.Shards
	}
	for round := range 3 {
		r := m.join(fmt.Sprint(round))
		n := kafka.distinct("a")
		eventually(t, "it publishes", func() bool { return kafka.distinct("a") > n+20 })
		eventually(t, "all shards share a cursor", together)
		r.end()
		// Each third of the shards goes back to another place: the beginning, an
		// earlier generation, nowhere.
		if _, err := pool.Exec(bg, `
			with c as (select * from fenceline.relay_checkpoint order by n desc limit 1)
			insert into fenceline.relay_checkpoint (shards, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
			select array(select s::smallint from generate_series($1::int, 63, 3) s), 1, 1, '3:3:', 0, null, null, null, 0, c.pair_low, c.pair_xid from c`, round); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(bg, `
			with c as (select * from fenceline.relay_checkpoint where cardinality(shards) > 30 order by n limit 1)
			insert into fenceline.relay_checkpoint (shards, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
			select array(select s::smallint from generate_series(($1::int + 1) % 3, 63, 3) s), 1, 1, c.s1, c.low, c.s2, c.high, c.low2, c.last_pos, c.pair_low, c.pair_xid from c`, round); err != nil {
			t.Fatal(err)
		}
	}
	written := end()
	r := m.join("last")
	total := func() int { return written + int(probed.Load()) }
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == total() })
	if probed.Load() == 0 {
		t.Error("no shards have joined: the test proves nothing")
	}
	eventually(t, "all shards share a cursor", together)
	eventually(t, "the other generations are gone, but for a few", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_checkpoint") <= 3*keptGenerations+3
	})
	r.end()
	kafka.mu.Lock()
	defer kafka.mu.Unlock()
	n, again, _ := firsts(t, kafka.logs["a"])
	t.Logf("%d events, %d copies, %d crashes", n, again, crashes.Load())
}

// What a relay without one of its leases may store: nothing, of no shard.
func TestACheckpointIsRefusedAsAWholeIfOneOfItsShardsIsAnothers(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	var epochs, tokens [3]int64
	for n := range 3 {
		if err := pool.QueryRow(bg, "select epoch, token from fenceline.relay_acquire($1, 'one', interval '1 hour', gen_random_uuid(), interval '1 s')", ShardKey(n)).Scan(&epochs[n], &tokens[n]); err != nil {
			t.Fatal(err)
		}
	}
	store := func(shards string, keys ...int) error {
		var ks []string
		var es, ts []int64
		for _, n := range keys {
			ks, es, ts = append(ks, ShardKey(n)), append(es, epochs[n]), append(ts, tokens[n])
		}
		_, err := pool.Exec(bg, "select fenceline.relay_checkpoint($1, $2, $3, $4::jsonb, '[]', '[]', null, true)", ks, es, ts,
			`[{"shards": `+shards+`, "s1": "3:3:", "low": 0, "last_pos": 0}]`)
		return err
	}
	code := func(err error) string {
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			return pg.Code
		}
		return fmt.Sprint(err)
	}
	if err := store("[0, 1, 2]", 0, 1, 2); err != nil {
		t.Fatal(err)
	}
	before := checkpointsOf(t, pool)
	seize(t, pool, 1, time.Hour)
	for name, c := range map[string]struct {
		shards string
		keys   []int
		code   string
	}{
		"one lease is another's":                {"[0, 2]", []int{0, 1, 2}, "FL003"},
		"shards beyond those that are shown":    {"[0, 1, 2]", []int{0, 2}, "FL009"},
		"none of them is shown":                 {"[0]", nil, "FL003"},
		"a shard is shown twice":                {"[0]", []int{0, 0, 1}, "FL003"},
		"a shard that nobody has ever acquired": {"[5]", []int{0, 2}, "FL009"},
	} {
		if got := code(store(c.shards, c.keys...)); got != c.code {
			t.Errorf("%s: %s, want %s", name, got, c.code)
		}
	}
	if n := checkpointsOf(t, pool); n != before {
		t.Errorf("%d cursors were stored", n-before)
	}
	key, refused := refusedToken(store("[0, 2]", 0, 1, 2))
	if !refused || key != ShardKey(1) {
		t.Errorf("the refusal names %q, %v", key, refused)
	}
	if err := store("[0, 2]", 0, 2); err != nil {
		t.Errorf("those that are left: %v", err)
	}
}

// What is not an event as append writes it is held, and named, and stops
// nothing else.
func TestRowsThatSomebodyHasInsertedByHandAreHeldAndNamed(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	insert := `insert into fenceline.outbox (id, aggregatetype, aggregateid, type, topic, key, shard, epoch, token, seq, source, headers, history)
		values (gen_random_uuid(), 'a', $1, 't', 'a', $1, $2, $3, $4, $5::bigint, 's', $6::jsonb, case when $5::bigint = 1 then 1 end)`
	for _, c := range []struct {
		key               string
		shard             int
		epoch, token, seq int64
		headers           *string
	}{
		{"no epoch", -1, 0, 1, 1, nil},
		{"a negative epoch", -1, -5, 1, 1, nil},
		{"a negative token", -1, 7, -1, 1, nil},
		{"a foreign shard", (outbox.Shard("a foreign shard") + 1) % outbox.Shards, 7, 1, 1, nil},
		{"no seq", -1, 7, 1, 0, nil},
		{"", -1, 7, 1, 1, nil},
		{"headers of another kind", -1, 7, 1, 1, ptr(`{"a": "b"}`)},
		{"headers by halves", -1, 7, 1, 1, ptr(`["a"]`)},
		{"headers of numbers", -1, 7, 1, 1, ptr(`[1, 2]`)},
	} {
		if c.shard < 0 {
			c.shard = outbox.Shard(c.key)
		}
		if _, err := pool.Exec(bg, insert, c.key, c.shard, c.epoch, c.token, c.seq, c.headers); err != nil {
			t.Fatalf("%s: %v", c.key, err)
		}
	}
	// Nobody would read it.
	if _, err := pool.Exec(bg, insert, "k", 64, 1, 1, 1, nil); err == nil {
		t.Error("a row of a shard that doesn't exist is taken")
	}
	r := startRelay(t, pool, kafka, quick())
	newProducer(t, pool, "k").publish("a", "fine")
	eventually(t, "what is fine is published", func() bool { return kafka.has("a", "fine") })
	eventually(t, "the others are held", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_held") == 9 })
	for key, word := range map[string]string{"no epoch": "epoch is 0", "a negative token": "token is -1", "a foreign shard": "shard", "headers by halves": "headers", "no seq": "seq is 0", "": "no key"} {
		if reason := query[string](t, pool, "select reason from fenceline.relay_held where key = $1", key); !strings.Contains(reason, word) {
			t.Errorf("%s: the reason is %q", key, reason)
		}
	}
	loads := r.loads.Load()
	r.passed(20)
	if n := r.loads.Load(); n != loads {
		t.Errorf("the relay began anew %d times", n-loads)
	}
	r.end()
	if got := kafka.payloads("a"); len(got) != 1 {
		t.Errorf("published %q", got)
	}
}

func ptr[T any](v T) *T { return &v }
