package outboxtest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/outbox/outboxtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// failing runs f with a test that may fail, and gives what it said.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                  {}
func (f *failing) Context() context.Context { return context.Background() }
func (f *failing) Fatal(args ...any)        { f.said = fmt.Sprint(args...); runtime.Goexit() }
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func failure(f func(t testing.TB)) string {
	t := &failing{}
	done := make(chan struct{})
	go func() { defer close(done); f(t) }()
	<-done
	return t.said
}

func want(t *testing.T, said string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("no %q in %q", text, said)
		}
	}
}

func TestWhatWasAppendedIsFoundAndWhatWasNotIsSaid(t *testing.T) {
	ctx := context.Background()
	pool := pgmigrated.Pool(t)
	fences, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := fences.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(ctx) //nolint:errcheck // the database goes
	want(t, failure(func(t testing.TB) { outboxtest.RequireAppended(t, pool, outboxtest.Match{}) }), "any event was not appended", "In the outbox: nothing")
	_, err = lease.Commit(ctx, fencing.Content{Step: "1"}, func(ctx context.Context, tx fencing.Tx) error {
		err := outbox.Append(ctx, tx,
			outbox.Event{Topic: "quakes", Type: "reported", Subject: "a", Payload: []byte("1"), Headers: []outbox.Header{{Name: "traceparent", Value: "00-x"}}},
			outbox.Event{Topic: "quakes", Type: "reported", Subject: "b", Payload: []byte{}},
			outbox.Event{Topic: "alarms", Type: "raised"})
		outboxtest.RequireNotAppended(t, tx, outboxtest.Match{}) // it goes with COMMIT
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := outboxtest.RequireAppended(t, pool, outboxtest.Match{Topic: "quakes", Key: "k", Type: "reported", Subject: "a", Payload: []byte("1"), Header: outbox.Header{Name: "traceparent", Value: "00-x"}})
	if r.Seq != 1 || r.Key != "k" || r.Epoch == 0 || r.CreatedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	outboxtest.RequireAppended(t, pool, outboxtest.Match{Payload: []byte{}}) // empty is not null
	outboxtest.RequireNotAppended(t, pool, outboxtest.Match{Topic: "quakes", Type: "raised"})
	all, err := outboxtest.Events(ctx, pool, outboxtest.Match{Topic: "quakes"})
	if err != nil || len(all) != 2 || all[0].Subject != "a" || all[1].Subject != "b" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, c := range []struct {
		f     func(t testing.TB)
		texts []string
	}{
		{func(t testing.TB) { outboxtest.RequireAppended(t, pool, outboxtest.Match{Key: "other"}) }, []string{`an event with key "other" was not appended`, `topic "alarms", key "k", type "raised"`, "with COMMIT"}},
		{func(t testing.TB) { outboxtest.RequireAppended(t, pool, outboxtest.Match{Topic: "quakes"}) }, []string{`2 events match an event with topic "quakes"`, "use Events"}},
		{func(t testing.TB) {
			outboxtest.RequireNotAppended(t, pool, outboxtest.Match{Header: outbox.Header{Name: "traceparent", Value: "00-x"}})
		}, []string{`header traceparent: "00-x" was appended`, `subject "a"`}},
		{func(t testing.TB) { outboxtest.RequireNotAppended(t, pool, outboxtest.Match{Schema: `x"`}) }, []string{"is not allowed"}},
		{func(t testing.TB) { outboxtest.RequireAppended(t, pool, outboxtest.Match{Schema: "nowhere"}) }, []string{"right to read payloads"}},
	} {
		want(t, failure(c.f), c.texts...)
	}
}

// announce is a user's function that appends.
func announce(ctx context.Context, tx outbox.Tx, id string) error {
	return outbox.Append(ctx, tx, outbox.Event{AggregateType: "quake", Type: "reported", Subject: id, Payload: []byte(id)})
}

func TestARecorderTakesThePlaceOfATransaction(t *testing.T) {
	r := &outboxtest.Recorder{Key: "catalogue/ci"}
	if err := announce(t.Context(), r, "ci1"); err != nil {
		t.Fatal(err)
	}
	e := r.RequireAppended(t, outboxtest.Match{Topic: "outbox.event.quake", Key: "catalogue/ci", Type: "reported", Payload: []byte("ci1")})
	if e.Source != "fenceline" || e.ContentType != "application/json" || e.ID == [16]byte{} {
		t.Errorf("%+v", e)
	}
	r.RequireNotAppended(t, outboxtest.Match{Subject: "ci2"})
	want(t, failure(func(t testing.TB) { r.RequireNotAppended(t, outboxtest.Match{Subject: "ci1"}) }), "was appended")
	want(t, failure(func(t testing.TB) { r.RequireAppended(t, outboxtest.Match{Subject: "ci2"}) }), `subject "ci2" was not appended`)
	if err := outbox.Append(t.Context(), r, outbox.Event{Topic: "no spaces", Type: "x"}); err == nil {
		t.Error("what could not be published is recorded")
	}
	r.Queue("select 1")
	if len(r.Events()) != 1 {
		t.Errorf("%d events", len(r.Events()))
	}
}

func Example() {
	r := &outboxtest.Recorder{Key: "catalogue/ci"}
	if err := announce(context.Background(), r, "ci40161279"); err != nil {
		fmt.Println(err)
	}
	for _, e := range r.Events() {
		fmt.Println(e.Topic, e.Key, e.Type, e.Subject)
	}
	// Output: outbox.event.quake catalogue/ci reported ci40161279
}
