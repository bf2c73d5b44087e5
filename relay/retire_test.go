package relay

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestARetiredTopicGetsItsVerdictAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"", "judged", "checkpoint"} {
		t.Run("crash at "+point, func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a", "gone")
			bad := poisoned(kafka, "bad")
			p, q := newProducer(t, pool, "k"), newProducer(t, pool, "poisoned")
			p.publish("gone", "1")
			q.publish("gone", "bad", "2")
			o := operator(t, pool)
			cfg := small()
			var armed, crashes atomic.Int32
			cfg.signals.crash = func(at string) bool { return at == point && armed.Load() == 1 && crashes.Add(1) <= 3 }
			r := startRelay(t, pool, kafka, cfg)
			patiently(t, "it is published", func() bool { return kafka.has("gone", "1") })
			isHeld(t, pool, "gone", "poisoned")
			_, err := o.RetireTopic(bg, "gone", me)
			notPossible(t, err, "not refused", "Delete it first")

			kafka.remove("gone")
			p.publish("gone", "2", "3", "4", "5", "6", "7")
			p.close()
			patiently(t, "it is refused", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
			bad.set()
			armed.Store(1)
			if isNew, err := o.RetireTopic(bg, "gone", me); !isNew || err != nil {
				t.Fatalf("retire: %v, %v", isNew, err)
			}
			if isNew, err := o.RetireTopic(bg, "gone", me); isNew || err != nil {
				t.Errorf("a second time: %v, %v", isNew, err)
			}
			patiently(t, "the fork dissolves", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
			isGone(t, pool, "gone", "poisoned")
			r2 := newProducer(t, pool, "late")
			r2.publish("gone", "late")
			r2.publish("a", "other")
			patiently(t, "the rest flows", func() bool { return kafka.has("a", "other") })
			unjudged := func() string {
				return query[string](t, pool, "select coalesce(string_agg(key || seq, ' ' order by pos), '') from fenceline.outbox where topic = 'gone' and verdict is null")
			}
			patiently(t, "all that was not published has its verdict", func() bool { return unjudged() == "k1" })
			r.end()
			if got := query[string](t, pool, "select string_agg(concat(seq, kind, skip_from, skip_to), ' ' order by pos) from fenceline.outbox where verdict = 'retired' and key = 'k'"); got != "2data22 3data33 4data44 5data55 6data66 7data77 8end" {
				t.Errorf("verdicts: %s", got)
			}
			if got := said(kafka.log("gone")); !slices.Equal(got, []string{"1"}) {
				t.Errorf("published %q", got)
			}
			if point != "" && crashes.Load() == 0 {
				t.Error("it never crashed")
			}
			list, err := o.Topics(bg)
			i := slices.IndexFunc(list, func(t TopicInfo) bool { return t.Topic == "gone" })
			if err != nil || i < 0 || list[i].RetiredBy != "test" || list[i].Why != "because" || list[i].RetiredAt.IsZero() || list[i].Partitions != 3 || list[i].Refused != "" {
				t.Errorf("listed as %+v, %v", list, err)
			}

			// It is created again under its name, and accepted: what comes is
			// published, and what was given up stays given up.
			kafka.create("gone", 5)
			if err := o.AcceptTopic(bg, "gone", 5, true, me); err != nil {
				t.Fatal(err)
			}
			armed.Store(0)
			r = startRelay(t, pool, kafka, cfg)
			r2.publish("gone", "new")
			patiently(t, "what comes is published", func() bool { return kafka.has("gone", "new") })
			r.end()
			if kafka.has("gone", "3") || kafka.has("gone", "bad") {
				t.Errorf("published %q", said(kafka.log("gone")))
			}
		})
	}
}

// The relay that runs notices, without a restart.
func TestATopicIsRetiredAndAcceptedUnderARunningRelay(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "1")
	o := operator(t, pool)
	cfg := quick()
	cfg.TopicCheck = 300 * time.Millisecond // what is committed right after the accept is read before the relay has looked
	r := startRelay(t, pool, kafka, cfg)
	patiently(t, "it is published", func() bool { return kafka.has("t", "1") })
	for round := range 3 {
		kafka.remove("t")
		p.publish("t", fmt.Sprint("lost", round))
		patiently(t, "it is refused", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
		if _, err := o.RetireTopic(bg, "t", me); err != nil {
			t.Fatal(err)
		}
		judged := fmt.Sprintf("select verdict is not null from fenceline.outbox where payload = 'lost%d'", round)
		patiently(t, "the verdict is given", func() bool { return query[bool](t, pool, judged) })
		patiently(t, "the fork dissolves", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
		kafka.create("t", 2+round)
		if err := o.AcceptTopic(bg, "t", 2+round, true, me); err != nil {
			t.Fatal(err)
		}
		// Until the relay has looked, it still gives verdicts.
		patiently(t, "it is in use again", func() bool {
			p.publish("t", fmt.Sprint("new", round))
			return kafka.has("t", fmt.Sprint("new", round))
		})
	}
	p.publish("t", "last")
	patiently(t, "all that is published is", func() bool { return kafka.has("t", "last") })
	r.end()
	sent := map[int64]bool{}
	for _, r := range kafka.log("t") {
		sent[r.Seq] = true
	}
	rows, err := pool.Query(bg, "select seq from fenceline.outbox where topic = 't' and verdict is null")
	if err != nil {
		t.Fatal(err)
	}
	seqs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range seqs {
		if !sent[seq] {
			t.Errorf("seq %d has neither been published nor has it a verdict", seq)
		}
	}
	for _, s := range said(kafka.log("t")) {
		if strings.HasPrefix(s, "lost") {
			t.Errorf("%q was published", s)
		}
	}
}

func TestAPartitionCountIsPinnedForGoodUntilAnotherIsAccepted(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	o := operator(t, pool)
	r := startRelay(t, pool, kafka, quick())
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	patiently(t, "it is published", func() bool { return kafka.has("a", "1") })
	r.end()
	notPossible(t, o.AcceptTopic(bg, "a", 3, true, me), "pinned to 3 partitions already")
	notPossible(t, o.AcceptTopic(bg, "unknown", 3, true, me), "never written")
	if err := o.AcceptTopic(bg, "a", 0, true, me); err == nil {
		t.Error("no partitions are accepted")
	}

	// While nobody runs: another process finds the same pin.
	kafka.create("a", 4)
	r = startRelay(t, pool, kafka, quick())
	p.publish("a", "2")
	p.publish("b", "other")
	patiently(t, "the rest flows", func() bool { return kafka.has("b", "other") })
	refused := func() string {
		return query[string](t, pool, "select coalesce((select reason from fenceline.relay_fork where topic = 'a'), '')")
	}
	patiently(t, "it is refused", func() bool { return strings.Contains(refused(), "4 partitions") })
	if kafka.has("a", "2") {
		t.Error("published all the same")
	}
	if err := o.AcceptTopic(bg, "a", 4, false, me); true {
		notPossible(t, err, "unread", "lag of every consumer group")
	}
	// A tombstone swept before it was refused says nothing, one afterwards does.
	set := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Fatal(err)
		}
	}
	set("update fenceline.retention set tombstone_at = clock_timestamp()")
	notPossible(t, o.AcceptTopic(bg, "a", 4, true, me), "tombstone was swept", "another name")
	set("update fenceline.retention set tombstone_at = clock_timestamp() - interval '1 day'")

	// A wrong count changes nothing for the better.
	if err := o.AcceptTopic(bg, "a", 5, true, me); err != nil {
		t.Fatal(err)
	}
	patiently(t, "it is refused still", func() bool { return strings.Contains(refused(), "goes by 5") || kafka.has("a", "2") })
	if err := o.AcceptTopic(bg, "a", 4, true, me); err != nil {
		t.Fatal(err)
	}
	patiently(t, "it flows with the new count", func() bool { return kafka.has("a", "2") })
	patiently(t, "the fork dissolves", func() bool { return refused() == "" })
	p.publish("a", "3")
	patiently(t, "it flows on", func() bool { return kafka.has("a", "3") })
	r.end()
	complete(t, kafka.log("a"))
}
