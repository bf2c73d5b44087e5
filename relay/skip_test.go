package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/outbox"
)

func TestASkippedRecordIsReplacedByAMarkerAndNeverSent(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	bad := poisoned(kafka, "bad")
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "bad", "3", "4")
	r := startRelay(t, pool, kafka, small())
	isHeld(t, pool, "a", "k")
	bad.set() // it would be taken now
	if s := skip(t, pool, "a", "k", 0); s != (Skipped{From: 2, To: 2}) {
		t.Errorf("skipped %+v", s)
	}
	isGone(t, pool, "a", "k")
	p.publish("a", "5")
	patiently(t, "the rest flows", func() bool { return kafka.has("a", "5") })
	r.end()
	log := kafka.log("a")
	if got := said(log); !slices.Equal(got, []string{"1", "skip 2-2", "3", "4", "5"}) {
		t.Fatalf("published %q", got)
	}
	complete(t, log)
	m := log[slices.IndexFunc(log, func(r outbox.Record) bool { return r.Kind == outbox.KindSkip })]
	if m.Type != "fenceline.skip" || m.Source != "fenceline" || m.Subject != "" || m.ContentType != "" || m.Headers != nil || len(m.Payload) != 0 {
		t.Errorf("the marker says something of the event: %+v", m)
	}
	if at := query[bool](t, pool, "select verdict_at = $1 from fenceline.outbox where payload = 'bad'", m.CreatedAt); !at {
		t.Errorf("the marker's time is %v", m.CreatedAt)
	}
	if id := query[string](t, pool, "select id::text from fenceline.outbox where payload = 'bad'"); id == m.ID.String() {
		t.Error("the marker has the event's id")
	}
}

// The relay is killed again and again on its way from the verdict to the end of
// the resume; also with another instance that reads everything from the start.
func TestWhateverCrashesASkippedRecordStaysAMarker(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"read held", "acknowledged", "settle held", "settled held"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a")
			bad := poisoned(kafka, "bad")
			p := newProducer(t, pool, "k")
			p.publish("a", "bad", "2", "3", "4", "5")
			var armed, crashes atomic.Int32
			cfg := small()
			cfg.signals.crash = func(at string) bool { return at == point && armed.Load() == 1 && crashes.Add(1) <= 3 }
			r := startRelay(t, pool, kafka, cfg)
			isHeld(t, pool, "a", "k")
			bad.set()
			armed.Store(1)
			skip(t, pool, "a", "k", 3)
			isGone(t, pool, "a", "k")
			r.end()
			// All of it once more.
			if _, err := pool.Exec(bg, "delete from fenceline.relay_checkpoint"); err != nil {
				t.Fatal(err)
			}
			before := len(kafka.log("a"))
			r = startRelay(t, pool, kafka, quick())
			patiently(t, "it is read once more", func() bool { return len(kafka.log("a")) >= before+4 })
			r.end()
			log := kafka.log("a")
			if got := said(log); !slices.Equal(got, []string{"skip 1-1", "skip 2-3", "4", "5"}) {
				t.Errorf("published %q", got)
			}
			if n := complete(t, log); n != 5 {
				t.Errorf("%d seqs are covered", n)
			}
			if crashes.Load() == 0 {
				t.Error("it never crashed")
			}
		})
	}
}

// heldAt is a stream of four events and the end of their life, held at a seq.
func heldAt(t *testing.T, pool *pgxpool.Pool, key string, seq int64) {
	t.Helper()
	p := newProducer(t, pool, key)
	p.publish("a", "1", "2", "3", "4")
	p.reopen()
	p.publish("a", "1'")
	holdAt(t, pool, key, seq)
}

func holdAt(t *testing.T, pool *pgxpool.Pool, key string, seq int64) {
	t.Helper()
	_, err := pool.Exec(bg, `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail)
		select topic, key, pos, epoch, seq, 'test', 'test' from fenceline.outbox where key = $1 and epoch = (select min(epoch) from fenceline.outbox where key = $1) and seq = $2`, key, seq)
	if err != nil {
		t.Fatal(err)
	}
}

func verdicts(t *testing.T, pool *pgxpool.Pool, key string) string {
	t.Helper()
	return query[string](t, pool, "select coalesce(string_agg(format('%s:%s-%s', seq, skip_from, skip_to), ' ' order by pos), '') from fenceline.outbox where verdict = 'skipped' and key = $1", key)
}

func TestASkipGivesUpARangeWithinItsEpochAndBeforeTheEnd(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	o := operator(t, pool)
	for _, c := range []struct {
		held, through int64
		want          Skipped
		rows          string
	}{
		{2, 0, Skipped{From: 2, To: 2}, "2:2-2"},
		{2, 2, Skipped{From: 2, To: 2}, "2:2-2"},
		{2, 4, Skipped{From: 2, To: 4}, "2:2-4 3:2-4 4:2-4"},
		// The first record of a life has a marker of its own: history and prev.
		{1, 1, Skipped{From: 1, To: 1}, "1:1-1"},
		{1, 3, Skipped{From: 1, To: 3}, "1:1-1 2:2-3 3:2-3"},
		// It stops before the end record.
		{3, 5, Skipped{From: 3, To: 4, BeforeEnd: true}, "3:3-4 4:3-4"},
		{3, 99, Skipped{From: 3, To: 4, BeforeEnd: true}, "3:3-4 4:3-4"},
	} {
		t.Run(fmt.Sprintf("%d to %d", c.held, c.through), func(t *testing.T) {
			key := fmt.Sprintf("%d to %d", c.held, c.through)
			heldAt(t, pool, key, c.held)
			s, err := o.Skip(bg, "a", key, c.through, me)
			if err != nil || s != c.want {
				t.Errorf("skipped %+v, %v, want %+v", s, err, c.want)
			}
			if got := verdicts(t, pool, key); got != c.rows {
				t.Errorf("in the rows: %s, want %s", got, c.rows)
			}
			held, err := o.Held(bg, HeldFilter{Topic: "a", Key: key})
			if err != nil || len(held) != 1 || held[0].State != StateSkip || held[0].AskedBy != "test" || held[0].Why != "because" || held[0].SkipTo != c.want.To || held[0].AskedAt.IsZero() {
				t.Errorf("held: %+v, %v", held, err)
			}
			// The verdict is final.
			_, err = o.Retry(bg, "a", key, me)
			notPossible(t, err, "skipped by test", "never be published again")
			_, err = o.Skip(bg, "a", key, 0, me)
			notPossible(t, err, "skipped by test")
			// Also when its marker was refused and the stream is held again.
			if _, err := pool.Exec(bg, "update fenceline.relay_held set state = 'held' where key = $1", key); err != nil {
				t.Fatal(err)
			}
			_, err = o.Skip(bg, "a", key, 0, me)
			notPossible(t, err, "its marker", "never the event")
		})
	}
}

// Kafka has the marker then, whatever becomes of the database's memory.
func TestAVerdictIsOnTheDiskBeforeTheRelayCanSeeIt(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	for _, was := range []string{"off", "local", "remote_apply"} {
		heldAt(t, pool, was, 2)
		tx, err := pool.Begin(bg)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(bg)
		var is string
		if _, err := tx.Exec(bg, "set local synchronous_commit = "+was); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(bg, "select fenceline.relay_held_skip('a', $1, null, 'test', '')", was); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(bg, "select current_setting('synchronous_commit')").Scan(&is); err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"off": "on", "local": "on", "remote_apply": "remote_apply"}[was]; is != want {
			t.Errorf("with %s it is committed with %s, want %s", was, is, want)
		}
	}
}

func TestWhatCannotBeSkippedIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	o := operator(t, pool)
	heldAt(t, pool, "k", 5)
	_, err := o.Skip(bg, "a", "k", 0, me)
	notPossible(t, err, "end of a life", "retire the topic") // F of the consumer's histories
	_, err = o.Skip(bg, "a", "other", 0, me)
	notPossible(t, err, "no stream", "held list")
	_, err = o.Retry(bg, "a", "other", me)
	notPossible(t, err, "no stream", "held list")

	set := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Fatal(err)
		}
	}
	set("delete from fenceline.relay_held")
	holdAt(t, pool, "k", 3)
	_, err = o.Skip(bg, "a", "k", 2, me)
	notPossible(t, err, "empty")
	// In a life that goes on, a range ends with the newest record.
	set("update fenceline.relay_held h set (pos, epoch, seq) = (select pos, epoch, seq from fenceline.outbox order by pos desc limit 1)")
	_, err = o.Skip(bg, "a", "k", 2, me)
	notPossible(t, err, "from seq 1 to 2 there is 1 record", "newest")
	// While a retry is under way, the event may be as well.
	retry(t, pool, "a", "k")
	_, err = o.Skip(bg, "a", "k", 0, me)
	notPossible(t, err, "a retry was asked for by test", "on its way")
	set("update fenceline.relay_held set state = 'held', seq = 99")
	_, err = o.Skip(bg, "a", "k", 0, me)
	notPossible(t, err, "not in the outbox")
	for _, who := range []string{"", strings.Repeat("x", 256)} {
		if _, err = o.Retry(bg, "a", "k", By{Who: who}); err == nil {
			t.Errorf("%q may decide", who)
		}
	}
	if v := verdicts(t, pool, "k"); v != "" {
		t.Errorf("something was given up all the same: %s", v)
	}
}

// Whoever writes a verdict: what the relay could not make a marker of is refused.
func TestAVerdictThatMakesNoMarkerCannotBeWritten(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	heldAt(t, pool, "k", 2)
	for _, set := range []string{
		"verdict = 'skipped'", "skip_from = 2, skip_to = 2", "verdict = 'skipped', skip_from = 2, skip_to = 2", "verdict = 'given up', skip_from = 2, skip_to = 2, verdict_at = now()",
		"verdict = 'skipped', skip_from = 3, skip_to = 3, verdict_at = now()", "verdict = 'skipped', skip_from = 1, skip_to = 2, verdict_at = now()", "verdict = 'skipped', skip_from = 0, skip_to = 2, verdict_at = now()",
		"verdict = 'skipped', skip_from = null, skip_to = null, verdict_at = now()", "verdict = 'skipped', skip_from = 2, skip_to = null, verdict_at = now()",
	} {
		_, err := pool.Exec(bg, "update fenceline.outbox set "+set+" where seq = 2")
		if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.ConstraintName != "outbox_verdict" {
			t.Errorf("%s gives %v", set, err)
		}
	}
	if _, err := pool.Exec(bg, "update fenceline.outbox set verdict = 'skipped', verdict_at = now() where kind = 'end'"); err == nil {
		t.Error("an end record was skipped")
	}
}

func TestAMarkerThatIsRefusedIsHeldAndSentByARetry(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	bad := poisoned(kafka, "bad", "") // a marker's payload is empty
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "bad", "3", "4")
	r := startRelay(t, pool, kafka, small())
	isHeld(t, pool, "a", "k")
	skip(t, pool, "a", "k", 3)
	patiently(t, "it is held at the marker", func() bool {
		return query[bool](t, pool, "select exists (select from fenceline.relay_held where seq = 3 and state = 'held')")
	})
	bad.set("bad")
	retry(t, pool, "a", "k")
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "skip 2-3", "4"}) {
		t.Errorf("published %q", got)
	}
}

// Somebody has inserted the row by hand, and an operator has skipped it. What
// consumers could not place is not sent: they would put it aside, or stop there.
func TestOfARowThatNoConsumerCouldPlaceNoMarkerIsMade(t *testing.T) {
	t.Parallel()
	const large = outbox.MaxNumber + 1
	for name, r := range map[string]outbox.Record{
		"epoch":    {Epoch: large, Token: 1, Seq: 1},
		"token":    {Epoch: 1, Token: large, Seq: 1},
		"seq":      {Epoch: 1, Token: 1, Seq: large},
		"no epoch": {Token: 1, Seq: 1},
		"no token": {Epoch: 1, Seq: 1},
	} {
		r.Key, r.Topic, r.Type, r.Source = "k", "a", "t", "s"
		got := row{Record: r}
		got.judge(r.Seq, r.Seq, time.Now())
		if !got.void || got.Kind == outbox.KindSkip {
			t.Errorf("%s: a marker is made of it: %+v", name, got.Record)
		}
	}
	most := row{Record: outbox.Record{Key: "k", Topic: "a", Type: "t", Source: "s", Epoch: outbox.MaxNumber, Token: outbox.MaxNumber, Seq: outbox.MaxNumber}}
	most.judge(most.Seq, most.Seq, time.Now())
	if most.void || most.Kind != outbox.KindSkip {
		t.Errorf("of the largest numbers there are no marker is made: %+v", most.Record)
	}
}
