package relay

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// asleep is a relay that looks once and then for an hour only if it is woken.
func asleep() Config {
	cfg := quick()
	cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
	return cfg
}

func TestAnIdleRelayIsWokenByACommit(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	waker, err := outbox.NewWaker(pool, outbox.WakerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer waker.Close()
	p := newProducer(t, pool, "k")
	r := startRelay(t, pool, kafka, asleep())
	for i := range 3 {
		p.publish("t", "x")
		waker.Wake()
		eventually(t, "the event is published", func() bool { return len(kafka.payloads("t")) == i+1 })
	}
	r.end()
}

func TestAWakeUpComesThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	direct := pool.Config()
	addr := startPooler(t, direct.ConnString(), false)
	pooled := pgtest.Connect(t, "postgres://postgres@"+addr+"/"+direct.ConnConfig.Database+"?sslmode=disable&default_query_exec_mode=exec")
	waker, err := outbox.NewWaker(pooled, outbox.WakerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer waker.Close()
	p := newProducer(t, pool, "k")
	r := startRelay(t, pool, kafka, asleep())
	p.publish("t", "x")
	waker.Wake()
	eventually(t, "the event is published", func() bool { return kafka.has("t", "x") })
	r.end()
}

func TestADeadListenConnectionIsNoticedAndReplaced(t *testing.T) {
	t.Parallel()
	dsn := pgmigrated.Migrated(t)
	admin := pgtest.Connect(t, dsn)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := pgproxy.Listen(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	through, err := proxy.DSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Connect(t, through)
	cfg := Config{Schema: "fenceline", Logger: slog.New(slog.DiscardHandler)}
	cfg.signals.listenQuiet = 100 * time.Millisecond
	l := newListener(pool, cfg)
	heard, forget := l.hear()
	defer forget()
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx) }()
	defer func() { cancel(); <-done }()

	eventually(t, "it listens", l.listening)
	receive(t, "the first look", heard)
	// Nothing passes, and nothing says so.
	proxy.Freeze()
	eventually(t, "the silence is noticed", func() bool { return !l.listening() })
	receive(t, "a look, since from now on there is nobody to wake", heard)
	proxy.Thaw()
	eventually(t, "it listens again", l.listening)
	receive(t, "a look, for what was committed meanwhile", heard)

	// A connection that breaks is replaced too.
	eventually(t, "its backend is ended", func() bool {
		return query[int](t, admin, "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'fenceline relay listener'") > 0
	})
	receive(t, "a look", heard)
	eventually(t, "it listens again", l.listening)
	for drained := false; !drained; {
		select {
		case <-heard:
		default:
			drained = true
		}
	}
	if _, err := admin.Exec(bg, "notify fenceline_wake"); err != nil {
		t.Fatal(err)
	}
	receive(t, "the NOTIFY", heard)
}

func TestTheReaderBacksOffAsFarAsItIsWoken(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	cfg := Config{PollMin: 2 * ms, PollBlind: 5 * ms, PollMax: 200 * ms}
	idle := func(p *pace, n int, listening bool) (d time.Duration) {
		for range n {
			d = p.next(0, false, listening)
		}
		return d
	}
	p := newPace(cfg)
	if d := p.next(10, false, true); d != 2*ms {
		t.Errorf("with events: %v", d)
	}
	if d := p.next(0, false, true); d != 2*ms {
		t.Errorf("the first time without: %v", d)
	}
	if d := idle(p, 20, true); d != 200*ms {
		t.Errorf("idle and listening: %v", d)
	}
	if d := p.next(0, false, false); d != 5*ms {
		t.Errorf("when the listener is gone: %v", d)
	}
	if d := idle(p, 20, true); d != 200*ms {
		t.Errorf("when it is back: %v", d)
	}
	for range unannouncedMost {
		p.next(1, false, true)
		idle(p, 20, true)
	}
	if d := idle(p, 20, true); d != 5*ms {
		t.Errorf("nobody announces events: %v", d)
	}
	p.next(1, true, true)
	if d := idle(p, 20, true); d != 200*ms {
		t.Errorf("somebody does again: %v", d)
	}
	// Found by a quick look, they say nothing about who announces.
	for range 10 {
		p.next(1, false, true)
		p.next(0, false, true)
	}
	if d := idle(p, 20, true); d != 200*ms {
		t.Errorf("under load: %v", d)
	}
	if p := newPace(Config{PollMin: 50 * ms, PollBlind: 5 * ms, PollMax: 100 * ms}); idle(p, 20, false) != 50*ms {
		t.Error("blind, it looks more often than PollMin")
	}
}

// While events come the next look is a moment away, and a wake-up is for the time
// when they don't.
func TestAWakeUpInAShortWaitEndsTheNextLongOne(t *testing.T) {
	t.Parallel()
	heard := make(chan struct{}, 1)
	signal(heard)
	select {
	case <-during(Config{}.withDefaults().PollMin, heard):
		t.Error("a wake-up ends the wait between looks that find events")
	default:
	}
	select {
	case <-during(2*shortWait, heard):
	default:
		t.Error("the wake-up was lost")
	}
}
