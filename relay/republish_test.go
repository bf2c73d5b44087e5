package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// published carries what is committed to the broker, and stops the relay.
func published(t *testing.T, pool *pgxpool.Pool, kafka *memory, topic, last string) {
	t.Helper()
	r := startRelay(t, pool, kafka, steady())
	patiently(t, last+" is published", func() bool { return kafka.has(topic, last) })
	r.end()
}

// again republishes to a broker of its own, and gives what arrived there.
func again(t *testing.T, pool *pgxpool.Pool, cfg RepublishConfig, topics ...string) (*memory, RepublishReport) {
	t.Helper()
	kafka := newMemory(t)
	for _, topic := range topics {
		kafka.create(topic, query[int](t, pool, "select coalesce((select partitions from fenceline.relay_topic where topic = $1), 3)", topic))
	}
	cfg.Who, cfg.Rate = "test", 1_000_000
	report, err := Republish(bg, pool, kafka, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return kafka, report
}

// wire is a record as it travels, but for the topic to which this copy goes.
func wire(r outbox.Record) string {
	return fmt.Sprintf("%q %q %q %d", r.Key, outbox.AppendWireHeaders(nil, &r), outbox.WireValue(&r), r.CreatedAt.UnixMilli())
}

func wires(records []outbox.Record) (all []string) {
	for _, r := range records {
		all = append(all, wire(r))
	}
	return all
}

// of is the part of a log that belongs to a key.
func of(records []outbox.Record, key string) (mine []outbox.Record) {
	for _, r := range records {
		if r.Key == key {
			mine = append(mine, r)
		}
	}
	return mine
}

func TestARepublishedCopyIsTheSameInEveryByte(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	kafka.create("a", 1)
	bad := poisoned(kafka, "bad")
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "other")
	p.publish("a", "1", "bad", "3", "4")
	r := startRelay(t, pool, kafka, steady())
	isHeld(t, pool, "a", "k")
	bad.set()
	skip(t, pool, "a", "k", 3)
	isGone(t, pool, "a", "k")
	p.publish("b", "b1", "b2")
	p.reopen()
	p.publish("a", "1'", "2'")
	q.publish("a", "o1", "o2", "o3")
	patiently(t, "all is published", func() bool { return kafka.has("a", "o3") && kafka.has("a", "2'") && kafka.has("b", "b2") })
	r.end()
	first := of(kafka.log("a"), "k")
	if got := said(first); len(got) != len(first) || !slices.Equal(got, []string{"1", "skip 2-3", "4", "end 5", "1'", "2'"}) {
		t.Fatalf("published %q", got)
	}
	pos := func(payload string) int64 {
		return query[int64](t, pool, "select pos from fenceline.outbox where payload = $1", []byte(payload))
	}
	at := func(payload string) time.Time {
		return query[time.Time](t, pool, "select created_at from fenceline.outbox where payload = $1", []byte(payload))
	}
	all, other, b := wires(first), wires(of(kafka.log("a"), "other")), wires(kafka.log("b"))
	for name, c := range map[string]struct {
		cfg    RepublishConfig
		a, b   []string
		report RepublishReport
	}{
		"a stream":              {RepublishConfig{Key: "k", Topic: "a"}, all, nil, RepublishReport{Events: 4, Markers: 1, Ends: 1}},
		"a key":                 {RepublishConfig{Key: "k"}, all, b, RepublishReport{Events: 6, Markers: 1, Ends: 2}},
		"a key from a pos on":   {RepublishConfig{Key: "k", Topic: "a", FromPos: pos("1'")}, all[4:], nil, RepublishReport{Events: 2}},
		"a range":               {RepublishConfig{FromPos: pos("o1"), ToPos: pos("o2")}, other[:2], nil, RepublishReport{Events: 2}},
		"a range of one topic":  {RepublishConfig{FromPos: 1, Topic: "b"}, nil, b, RepublishReport{Events: 2, Ends: 1}},
		"a time span":           {RepublishConfig{From: at("o1"), To: at("o1").Add(time.Hour)}, other, nil, RepublishReport{Events: 3}},
		"up to a time":          {RepublishConfig{To: at("b1"), Key: "k"}, all[:3], nil, RepublishReport{Events: 2, Markers: 1}},
		"part of a skip":        {RepublishConfig{FromPos: pos("bad"), ToPos: pos("bad")}, all[1:2], nil, RepublishReport{Markers: 1}},
		"the rest of a skip":    {RepublishConfig{FromPos: pos("3"), ToPos: pos("3")}, all[1:2], nil, RepublishReport{Markers: 1}},
		"nothing":               {RepublishConfig{Key: "nobody"}, nil, nil, RepublishReport{}},
		"a life's end and more": {RepublishConfig{Key: "k", Topic: "a", FromPos: pos("4")}, all[2:], nil, RepublishReport{Events: 3, Ends: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			copies, report := again(t, pool, c.cfg, "a", "b")
			if got := wires(copies.log("a")); !slices.Equal(got, c.a) {
				t.Errorf("to a: %s\nwant %s", strings.Join(got, "\n"), strings.Join(c.a, "\n"))
			}
			if got := wires(copies.log("b")); len(got) != len(c.b) || len(got) > 0 && !slices.Equal(got, c.b) {
				t.Errorf("to b: %s\nwant %s", strings.Join(got, "\n"), strings.Join(c.b, "\n"))
			}
			report.LastPos = 0
			if fmt.Sprint(report) != fmt.Sprint(c.report) {
				t.Errorf("the report is %+v, want %+v", report, c.report)
			}
		})
	}
	t.Run("to another topic", func(t *testing.T) {
		copies, _ := again(t, pool, RepublishConfig{Key: "k", Topic: "a", ToTopic: "elsewhere"}, "elsewhere")
		log := copies.log("elsewhere")
		if got := wires(log); !slices.Equal(got, all) {
			t.Errorf("published %s", strings.Join(got, "\n"))
		}
		for _, r := range log {
			if r.Stream != "a" || r.Topic != "elsewhere" {
				t.Errorf("a copy in %s belongs to the stream of %s", r.Topic, r.Stream)
			}
		}
	})
	t.Run("in pages and small batches", func(t *testing.T) {
		copies, _ := again(t, pool, RepublishConfig{Key: "k", Topic: "a", BatchRecords: 2}, "a")
		if got := wires(copies.log("a")); !slices.Equal(got, all) {
			t.Errorf("published %s", strings.Join(got, "\n"))
		}
	})
	t.Run("for show", func(t *testing.T) {
		copies, report := again(t, pool, RepublishConfig{Key: "k", Topic: "a", DryRun: true})
		if report.Events != 4 || report.Markers != 1 || report.Ends != 1 || len(copies.logs) != 0 {
			t.Errorf("the report is %+v, and %v was published", report, copies.logs)
		}
	})
	if n := query[int](t, pool, "select count(*) from fenceline.relay_audit where action = 'republish' and who = 'test' and detail ? 'events'"); n < 10 {
		t.Errorf("%d republishes are on record", n)
	}
}

// A copy in front of the first one would stand before the events that precede
// it: whatever the relay is still to publish is left alone.
func TestWhatTheRelayIsStillToPublishIsLeftAlone(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	p, q, s, u := newProducer(t, pool, "p"), newProducer(t, pool, "held"), newProducer(t, pool, "straggler"), newProducer(t, pool, "u")
	straggler := s.begin().enter().append("a", "straggler")
	p.publish("a", "1")
	p.publish("refused", "r1")
	q.publish("a", "h1", "bad", "h3")
	r := startRelay(t, pool, kafka, quick())
	isHeld(t, pool, "a", "held")
	patiently(t, "it is published", func() bool { return kafka.has("a", "1") })
	patiently(t, "the fork is stored", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
	r.end()
	bad.set()
	straggler.commit()
	u.publish("a", "new")

	copies, report := again(t, pool, RepublishConfig{FromPos: 1}, "a", "refused")
	if got := said(copies.log("a")); !slices.Equal(got, []string{"1", "h1"}) {
		t.Errorf("published %q", got)
	}
	if n := len(copies.log("refused")); n != 0 {
		t.Errorf("%d events of a refused topic are published", n)
	}
	left := map[string]int64{}
	for _, l := range report.Left {
		left[l.Reason] = l.Count
		if l.First == 0 {
			t.Errorf("%q doesn't say which", l.Reason)
		}
	}
	if fmt.Sprint(left) != fmt.Sprint(map[string]int64{LeftHeld: 2, LeftRefused: 1, LeftUnpublished: 2}) {
		t.Errorf("left alone: %v", left)
	}
	// Once they are published they can be published again.
	kafka.create("refused", 1)
	retry(t, pool, "a", "held")
	r = startRelay(t, pool, kafka, quick())
	isGone(t, pool, "a", "held")
	patiently(t, "all is published", func() bool { return kafka.has("refused", "r1") && kafka.has("a", "straggler") && kafka.has("a", "new") })
	patiently(t, "the fork dissolves", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	r.end()
	copies, report = again(t, pool, RepublishConfig{FromPos: 1}, "a", "refused")
	if report.Left != nil || len(copies.log("a")) != 6 || len(copies.log("refused")) != 1 {
		t.Errorf("published %q and %q, left %+v", said(copies.log("a")), said(copies.log("refused")), report.Left)
	}
}

// Inside a window, what is behind the progress is published and what is not isn't.
func TestARepublishStopsInsideAWindowWhereTheCursorStands(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3")
	_, err := pool.Exec(bg, `insert into fenceline.relay_checkpoint (n, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
		select 1, 1, 1, '3:3:', 0, pg_current_snapshot(), max(pos), 0, min(pos) + 1, 0, '3' from fenceline.outbox`)
	if err != nil {
		t.Fatal(err)
	}
	copies, report := again(t, pool, RepublishConfig{Key: "k"}, "a")
	if got := said(copies.log("a")); !slices.Equal(got, []string{"1", "2"}) || len(report.Left) != 1 {
		t.Errorf("published %q, left %+v", got, report.Left)
	}
}

func TestARepublishWaitsOutAnOutageAndNamesWhatIsRefused(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3", "4")
	published(t, pool, kafka, "a", "4")

	away := 3
	var sent []*Batch
	kafka.answer(func(_ context.Context, b *Batch) error {
		sent = append(sent, b)
		if away--; away >= 0 {
			return errAway
		}
		return nil
	})
	before := len(kafka.log("a"))
	if _, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", Rate: 1_000_000}); err != nil {
		t.Fatal(err)
	}
	if len(sent) != 4 || sent[0] != sent[3] || len(kafka.log("a")) != before+4 {
		t.Errorf("%d attempts, %d copies", len(sent), len(kafka.log("a"))-before)
	}

	poisoned(kafka, "3")
	report, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", Rate: 1_000_000})
	var refused *RefusedError
	pos := query[int64](t, pool, "select pos from fenceline.outbox where seq = 3")
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "seq 3") || !strings.Contains(err.Error(), fmt.Sprint("-from-pos ", pos+1)) || report.Events != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	kafka.remove("a")
	var topic *TopicError
	if _, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k"}); !errors.As(err, &topic) {
		t.Errorf("a topic that is gone gives %v", err)
	}
	kafka.create("a", 7)
	if _, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k"}); !errors.As(err, &topic) || !strings.Contains(err.Error(), "7 partitions") {
		t.Errorf("another partition count gives %v", err)
	}
}

func TestARepublishKeepsToItsRateAndEndsWhenItIsTold(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", slices.Repeat([]string{"x"}, 39)...)
	p.publish("a", "last")
	published(t, pool, kafka, "a", "last")
	began := time.Now()
	var progress []int64
	report, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", Rate: 100, BatchRecords: 10, Progress: func(r RepublishReport) { progress = append(progress, r.Events) }})
	// The last ten may go as soon as the thirty before them are due.
	if took := time.Since(began); err != nil || report.Events != 40 || took < 290*time.Millisecond {
		t.Errorf("%d events in %v, %v", report.Events, took, err)
	}
	if !slices.Equal(progress, []int64{40}) {
		t.Errorf("told of %d", progress)
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	kafka.answer(func(context.Context, *Batch) error { cancel(); return nil })
	if report, err := Republish(ctx, pool, kafka, RepublishConfig{Who: "test", Key: "k", Rate: 1, BatchRecords: 1}); !errors.Is(err, context.Canceled) || report.Events != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if n := query[int64](t, pool, "select (detail->>'events')::bigint from fenceline.relay_audit order by n desc limit 1"); n != 1 {
		t.Errorf("on record are %d", n)
	}
}

// A choice by position, or by time, can end within the ranges of several skips.
func TestEachMarkerWhosePlaceWasNotChosenIsRepublished(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.answer(refusing("poison"))
	cfg := steady()
	keys := []string{"k", "l", "m"}
	var producers []*producer
	for _, key := range keys {
		producers = append(producers, newProducer(t, pool, key))
		producers[len(producers)-1].publish("a", "1", "poison")
	}
	last := query[int64](t, pool, "select max(pos) from fenceline.outbox")
	for _, p := range producers {
		p.publish("a", "3")
	}
	r := startRelay(t, pool, kafka, cfg)
	patiently(t, "the streams are held", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_held") == len(keys) })
	operator, err := NewOperator(bg, pool, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if _, err := operator.Skip(bg, "a", key, 3, By{Who: "me"}); err != nil {
			t.Fatal(err)
		}
	}
	patiently(t, "nothing is held", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_held") == 0 })
	r.end()
	there, report := again(t, pool, RepublishConfig{FromPos: 1, ToPos: last}, "a")
	if report.Events != 3 || report.Markers != 3 {
		t.Errorf("%+v, want an event and a marker of each stream", report)
	}
	for _, key := range keys {
		if !slices.ContainsFunc(there.log("a"), func(rec outbox.Record) bool {
			return rec.Key == key && rec.Kind == outbox.KindSkip && rec.From == 2 && rec.Seq == 3
		}) {
			t.Errorf("the marker of %q is missing", key)
		}
	}
}

// An outage that was waited out is no reason to send faster than was said.
func TestWhatARepublishCouldNotSendWhenItWasDueIsNotMadeUpFor(t *testing.T) {
	t.Parallel()
	r := &republisher{cfg: RepublishConfig{Rate: 1}, due: time.Now().Add(-time.Hour)}
	began := time.Now()
	if err := r.pace(bg, 3600); err != nil {
		t.Fatal(err)
	}
	if !r.due.After(began.Add(3599 * time.Second)) {
		t.Errorf("the next batch is due %v after the one that came late, want an hour", r.due.Sub(began))
	}
}

func TestARepublishEndsWhenTheRelaysArePausedMeanwhile(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3")
	published(t, pool, kafka, "a", "3")
	before := len(kafka.log("a"))
	kafka.answer(func(context.Context, *Batch) error {
		if _, err := SetPause(bg, pool, "", true, "me", "the broker is upgraded"); err != nil {
			t.Error(err)
		}
		return nil
	})
	report, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", BatchRecords: 1, Rate: 1_000_000, lookEvery: time.Nanosecond})
	if !errors.Is(err, ErrPaused) || report.Events != 1 || len(kafka.log("a")) != before+1 {
		t.Errorf("%+v, %v; %d copies", report, err, len(kafka.log("a"))-before)
	}
	if n := query[int64](t, pool, "select (detail->>'events')::bigint from fenceline.relay_audit where action = 'republish' order by n desc limit 1"); n != 1 {
		t.Errorf("on record are %d", n)
	}
}

// Also where the broker doesn't acknowledge, which may be why they are paused.
func TestARepublishEndsWhenTheRelaysArePausedInAnOutage(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2")
	published(t, pool, kafka, "a", "2")
	var attempts atomic.Int32
	kafka.answer(func(context.Context, *Batch) error {
		if attempts.Add(1) > 1 {
			return nil
		}
		if _, err := SetPause(bg, pool, "", true, "me", "the broker is ill"); err != nil {
			t.Error(err)
		}
		return errors.New("no answer")
	})
	report, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", Rate: 1_000_000, lookEvery: time.Nanosecond})
	if !errors.Is(err, ErrPaused) || report.Events != 0 || attempts.Load() != 1 {
		t.Errorf("%+v, %v after %d attempts", report, err, attempts.Load())
	}
}

func TestARepublishThatChoosesNothingOrTheImpossibleIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, cfg := range map[string]RepublishConfig{
		"who does this":              {Key: "k"},
		"nothing chooses":            {Who: "w", Topic: "t"},
		"range of pos from 5 to 4":   {Who: "w", FromPos: 5, ToPos: 4},
		"range of pos from -1":       {Who: "w", FromPos: -1},
		"the time span":              {Who: "w", From: now, To: now},
		"rate is -1":                 {Who: "w", Key: "k", Rate: -1},
		"schema":                     {Who: "w", Key: "k", Schema: "Public"},
		"max record bytes is -1":     {Who: "w", Key: "k", MaxRecordBytes: -1},
		"has 256 bytes: use 1 to 25": {Who: strings.Repeat("w", 256), Key: "k"},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gives %v, want %q", cfg, err, want)
		}
	}
}

// Neither a standby nor a restored database knows for sure what was skipped.
func TestNothingIsRepublishedFromAStandbyNorFromAnotherHistory(t *testing.T) {
	t.Parallel()
	server, pool := ownServer(t, map[string]string{"max_wal_senders": "4", "wal_level": "replica"})
	kafka := newMemory(t, "a")
	newProducer(t, pool, "k").publish("a", "1")
	publishAll(t, pool, kafka)
	cfg := RepublishConfig{Key: "k", Who: "test"}
	nothing := func(pool *pgxpool.Pool, match func(error) bool) {
		t.Helper()
		copies := newMemory(t, "a")
		if _, err := Republish(bg, pool, copies, cfg); err == nil || !match(err) {
			t.Errorf("the answer is %v", err)
		}
		if n := len(copies.log("a")); n != 0 {
			t.Errorf("%d records were published", n)
		}
		dry := cfg
		dry.DryRun = true
		if report, err := Republish(bg, pool, copies, dry); err != nil || report.Events != 1 {
			t.Errorf("a dry run: %+v, %v", report, err)
		}
	}
	standby := pgtest.Replica(t, server, devstack.ReplicaConfig{})
	nothing(pgtest.Connect(t, standby.DSN("postgres")), func(err error) bool {
		var setting *SettingError
		return errors.As(err, &setting) && strings.Contains(setting.Remedy, "connect to the primary")
	})
	if _, err := pool.Exec(bg, "update fenceline.history set timeline = '00000009'"); err != nil {
		t.Fatal(err)
	}
	nothing(pool, func(err error) bool {
		return errors.Is(err, fencing.ErrHistory) && strings.Contains(err.Error(), "relay history confirm")
	})
	if _, err := pool.Exec(bg, "select fenceline.history_confirm()"); err != nil {
		t.Fatal(err)
	}
	if _, report := again(t, pool, RepublishConfig{Key: "k"}, "a"); report.Events != 1 {
		t.Errorf("once it is confirmed: %+v", report)
	}
}

// The next batch is due in hours, and nobody would know until then that it has ended.
func TestARepublishEndsWhenTheRelaysArePausedBetweenTwoBatches(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	payloads := make([]string, 110)
	for i := range payloads {
		payloads[i] = "x"
	}
	newProducer(t, pool, "k").publish("a", append(payloads, "last")...)
	published(t, pool, kafka, "a", "last")
	sent := make(chan struct{}, 10)
	kafka.answer(func(context.Context, *Batch) error { signal(sent); return nil })
	ended := make(chan error, 1)
	go func() {
		_, err := Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: "k", BatchRecords: 100, Rate: 1, lookEvery: 10 * time.Millisecond})
		ended <- err
	}()
	receive(t, "the first batch is sent", sent)
	if _, err := SetPause(bg, pool, "", true, "me", "the broker is upgraded"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "it ends", ended); !errors.Is(err, ErrPaused) {
		t.Errorf("it ends with %v", err)
	}
}
