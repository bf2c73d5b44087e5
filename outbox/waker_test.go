package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// ear hears the NOTIFYs of a database.
func (b *bed) ear() *pgx.Conn {
	b.Helper()
	conn, err := pgx.ConnectConfig(ctx, b.admin.Config().ConnConfig)
	b.ok(err)
	b.Cleanup(func() { _ = conn.Close(ctx) })
	_, err = conn.Exec(ctx, "listen fenceline_wake")
	b.ok(err)
	return conn
}

// heard waits for the next NOTIFY and returns its payload.
func (b *bed) heard(ear *pgx.Conn) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	n, err := ear.WaitForNotification(ctx)
	b.ok(err)
	return n.Payload
}

func (b *bed) waker(interval time.Duration) *outbox.Waker {
	b.Helper()
	w, err := outbox.NewWaker(b.pool, outbox.WakerConfig{Interval: interval, Timeout: time.Minute})
	b.ok(err)
	b.Cleanup(w.Close)
	return w
}

func TestACommitWakesTheRelayIfAndOnlyIfItHasEvents(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var wakes atomic.Int64
	var visible atomic.Int64
	fences, err := fencing.New(ctx, b.pool, fencing.Config{AllowUnsafeDatabase: true, Wake: func() {
		var n int64
		// The events are there for everybody when it is called: NOTIFY can't be in
		// their transaction.
		if err := b.admin.QueryRow(ctx, "select count(*) from fenceline.outbox").Scan(&n); err != nil {
			t.Error(err)
		}
		visible.Store(n)
		wakes.Add(1)
	}})
	b.ok(err)
	lease, err := fences.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute})
	b.ok(err)
	event := outbox.Event{Topic: "t", Type: "x"}
	appends := func(ctx context.Context, tx fencing.Tx) error { return outbox.Append(ctx, tx, event) }
	content := func(step string) fencing.Content { return fencing.Content{Step: step, Bytes: []byte(step)} }
	batch := func(step string, events ...outbox.Event) error {
		_, err := lease.CommitBatch(ctx, content(step), func(b *fencing.Batch) error { return outbox.Append(ctx, b, events...) })
		return err
	}
	boom := errors.New("boom")
	for _, c := range []struct {
		name           string
		commit         func() error
		wakes, visible int64
		fails          bool
	}{
		{"with an event", func() error { _, err := lease.Commit(ctx, content("1"), appends); return err }, 1, 1, false},
		{"replayed", func() error { _, err := lease.Commit(ctx, content("1"), appends); return err }, 1, 1, false},
		{"without events", func() error {
			_, err := lease.Commit(ctx, content("2"), func(context.Context, fencing.Tx) error { return nil })
			return err
		}, 1, 1, false},
		{"that fails", func() error {
			_, err := lease.Commit(ctx, content("3"), func(ctx context.Context, tx fencing.Tx) error { return errors.Join(appends(ctx, tx), boom) })
			return err
		}, 1, 1, true},
		{"whose statement fails", func() error {
			_, err := lease.Commit(ctx, content("4"), func(ctx context.Context, tx fencing.Tx) error { tx.Queue("select 1/0"); return appends(ctx, tx) })
			return err
		}, 1, 1, true},
		{"of a batch", func() error { return batch("5", event, event) }, 2, 3, false},
		// It goes along with the gate, in one call.
		{"of a batch with one event", func() error { return batch("6", event) }, 3, 4, false},
		{"of a batch, replayed", func() error { return batch("6", event) }, 3, 4, false},
		{"of a batch without events", func() error { return batch("7") }, 3, 4, false},
		{"with end records", func() error { _, err := lease.Close(ctx); return err }, 4, 5, false},
	} {
		if err := c.commit(); (err != nil) != c.fails {
			t.Fatalf("a commit %s: %v", c.name, err)
		}
		if wakes.Load() != c.wakes || visible.Load() != c.visible {
			t.Errorf("after a commit %s: %d wake-ups, the last at %d events; want %d at %d", c.name, wakes.Load(), visible.Load(), c.wakes, c.visible)
		}
	}
}

func TestManyCommitsAreOneNotify(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ear := b.ear()
	w := b.waker(time.Hour)
	for range 1000 {
		w.Wake()
	}
	if got := b.heard(ear); got != "" {
		t.Errorf("the first is %q", got)
	}
	_, err := b.admin.Exec(ctx, "notify fenceline_wake, 'the test''s own'")
	b.ok(err)
	if got := b.heard(ear); got != "the test's own" {
		t.Error("there was a second within the interval")
	}
}

func TestAWakeUpWithinTheIntervalIsSentAtItsEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ear := b.ear()
	w := b.waker(20 * time.Millisecond)
	for range 5 {
		w.Wake()
		b.heard(ear)
	}
}

// held keeps who has sent a statement from reading its answer, until it is let go.
type held chan struct{}

func (h held) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (h held) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { <-h }

// What is committed behind a NOTIFY is not told by it.
func TestAWakeUpWhileOneIsSentIsNotForgotten(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ear := b.ear()
	cfg, sent := b.pool.Config(), make(held)
	cfg.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	b.ok(err)
	t.Cleanup(pool.Close)
	w, err := outbox.NewWaker(pool, outbox.WakerConfig{Interval: time.Millisecond, Timeout: time.Minute})
	b.ok(err)
	w.Wake()
	b.heard(ear)
	w.Wake()
	close(sent)
	b.heard(ear)
	w.Close()
}

// A process that commits and ends is done before an interval is over, or before the
// first NOTIFY is sent.
func TestACloseForgetsNoWakeUp(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ear := b.ear()
	w := b.waker(time.Hour)
	w.Wake()
	w.Close()
	b.heard(ear)
	w = b.waker(time.Hour)
	w.Wake()
	b.heard(ear)
	w.Wake()
	w.Close()
	b.heard(ear)
	w.Close() // as a defer does
}

func TestAClosedWakerIsSilentAndAFailingOneBlocksNobody(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	ear := b.ear()
	w := b.waker(time.Millisecond)
	w.Close()
	w.Wake()
	_, err := b.admin.Exec(ctx, "notify fenceline_wake, 'the test''s own'")
	b.ok(err)
	if got := b.heard(ear); got != "the test's own" {
		t.Error("a closed waker wakes")
	}

	broken, err := outbox.NewWaker(b.pool, outbox.WakerConfig{Interval: time.Hour, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)})
	b.ok(err)
	var conns []interface{ Release() }
	for range b.pool.Config().MaxConns { // none is left for it
		c, err := b.pool.Acquire(ctx)
		b.ok(err)
		conns = append(conns, c)
	}
	broken.Wake()
	broken.Wake()
	broken.Close() // waits no longer than for one
	for _, c := range conns {
		c.Release()
	}
}

func TestAWakerThatCannotWorkIsRefusedWhereItIsMade(t *testing.T) {
	t.Parallel()
	pool := newBed(t).pool
	for field, build := range map[string]func() (*outbox.Waker, error){
		"pool":     func() (*outbox.Waker, error) { return outbox.NewWaker(nil, outbox.WakerConfig{}) },
		"schema":   func() (*outbox.Waker, error) { return outbox.NewWaker(pool, outbox.WakerConfig{Schema: `x"; drop`}) },
		"interval": func() (*outbox.Waker, error) { return outbox.NewWaker(pool, outbox.WakerConfig{Interval: -1}) },
		"timeout":  func() (*outbox.Waker, error) { return outbox.NewWaker(pool, outbox.WakerConfig{Timeout: -1}) },
	} {
		w, err := build()
		if e, ok := errors.AsType[*outbox.WakerError](err); !ok || e.Field != field || w != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}
