package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

func (b *bench) newGuard() *consumer.Guard {
	b.t.Helper()
	g, err := consumer.NewGuard(consumer.GuardConfig{Consumer: "example"})
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

func TestTheExampleWithFranzAppliesOnceInOrderAlsoWhenItIsRewound(t *testing.T) {
	c := newCluster(t, 2)
	for seq := int64(1); seq <= 20; seq++ {
		c.publish(event(c.topic, "a", seq), event(c.topic, "b", seq), event(c.topic, "a", max(1, seq-3)))
	}
	c.publish(event(c.topic, "poison", 1), event(c.topic, "poison", 2))
	guard := c.newGuard()
	for round := range 2 {
		client, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(c.topic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- consumeWithFranz(ctx, client, c.pool, guard, c.failing("poison", 1, rejected)) }()
		c.eventually("everything is committed", func() bool { return c.committed() == 62 })
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		client.Close()
		if round == 0 {
			c.rewind()
		}
	}
	c.want("a", effects("a", 1, 20)...)
	c.want("b", effects("b", 1, 20)...)
	if got := c.one("select string_agg(seq || ':' || reason, ' ' order by seq) from fenceline.parked"); got != "1:failing 2:gap" {
		t.Errorf("parked: %s", got)
	}
}

func rejected(context.Context, pgx.Tx) error { return consumer.Reject(errPoison) }

// What may pass is no event's fault.
func TestTheExamplesParkNothingThatFailsForAPassingReason(t *testing.T) {
	b := newBench(t)
	ds := []consumer.Delivery{consumer.NewDelivery(consumer.Partition{Topic: "t"}, wireRecord(event("t", "a", 1)))}
	fails := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `do $$ begin raise exception 'deadlock detected' using errcode = '40P01'; end $$`)
		return err
	}
	guard := b.newGuard()
	if _, err := applyGuarded(t.Context(), b.pool, guard, ds, b.failing("a", 1, fails)); err == nil || !strings.Contains(err.Error(), "deadlock detected") {
		t.Errorf("got %v", err)
	}
	rs, err := applyGuarded(t.Context(), b.pool, guard, ds, b.apply("x"))
	if err != nil || rs[0].Outcome != consumer.Applied {
		t.Errorf("got %+v, %v", rs, err)
	}
}

// As it is shown: with polling that blocks rebalances.
func TestTheExampleWithFranzSharesItsPartitionsWithWhoJoins(t *testing.T) {
	c := newCluster(t, 2)
	guard := c.newGuard()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var members sync.WaitGroup
	join := func(by string) {
		client, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(c.topic),
			kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.HeartbeatInterval(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		members.Go(func() {
			defer client.Close()
			if err := consumeWithFranz(ctx, client, c.pool, guard, c.apply(by)); err != nil {
				t.Errorf("%s: %v", by, err)
			}
		})
	}
	n := int64(0)
	more := func() { // of as many keys as it takes to have some in each partition
		n++
		for k := range 8 {
			c.publish(event(c.topic, fmt.Sprint("k", k), n))
		}
	}
	join("one")
	more()
	c.eventually("the first has all", func() bool { return c.committed() == 8 })
	join("two")
	c.eventually("both apply", func() bool {
		more()
		return c.one("select count(distinct by)::text from applied") == "2"
	})
	c.eventually("everything is committed", func() bool { return c.committed() == 8*n })
	cancel()
	left := make(chan struct{})
	go func() { members.Wait(); close(left) }()
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the members can't leave")
	}
}

func TestTheExampleWebhookAppliesOnceAndPutsAsideWhatItCannotRead(t *testing.T) {
	b := newBench(t)
	server := httptest.NewServer(webhook(b.pool, b.newGuard(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.ContentType != "text/plain" {
			t.Errorf("the event's content type is %q", d.ContentType)
		}
		return b.apply("x")(ctx, tx, d)
	})))
	defer server.Close()
	post := func(r outbox.Record, spoil string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/t", strings.NewReader(string(r.Payload)))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range outbox.AppendWireHeaders(nil, &r) {
			if name := strings.Replace(h.Key, "_", "-", 1); name != spoil {
				req.Header.Set(name, string(h.Value))
			}
		}
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return fmt.Sprint(res.StatusCode, " ", res.Header.Get("Outcome"))
	}
	var got []string
	for _, seq := range []int64{1, 1, 3, 2} {
		got = append(got, post(event("t", "a", seq), ""))
	}
	got = append(got, post(event("t", "a", 4), "ce-fenceseq"))
	if want := []string{"204 applied", "204 duplicate", "204 parked", "204 applied", "422 "}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
	b.want("", effects("a", 1, 3)...)
}

func TestTheExampleWithDatabaseSQLIsGuarded(t *testing.T) {
	b := newBench(t)
	db, err := sql.Open("pgx", b.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the test has its results
	guard := b.newGuard()
	for range 2 {
		err := withDatabaseSQL(t.Context(), db, func(tx pgx.Tx) error {
			d := consumer.Mapping(consumer.Wire).Delivery(consumer.Partition{Topic: "t"}, wireRecord(event("t", "a", 1)))
			_, err := guard.Apply(t.Context(), tx, []consumer.Delivery{d}, b.apply("x"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.want("", "a/1")
}

// The receiver does the work and its answer is lost: what the guard promises
// ends here, and the key is what is left to go by.
func TestAnEffectOutsideIsDecidedOnceAndAskedForWithTheSameKeyUntilItIsAnswered(t *testing.T) {
	b := newBench(t)
	b.exec("create table mail (id uuid primary key, text text)")
	var mu sync.Mutex
	asked := map[string]int{}
	lose := true
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.Header.Get("Idempotency-Key")]++
		if lose { // the mail is out, and nobody hears of it
			lose = false
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer receiver.Close()
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 2), event("t", "a", 1))
	stop := b.run(log.source(), b.config(), consumer.HandlerFunc(rememberMail))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sendMail(t.Context(), b.pool, receiver.Client(), receiver.URL); err == nil {
			t.Fatal("it has ended without an error")
		} else if errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	total := 0
	for id, n := range asked {
		if id == "" {
			t.Error("a request without a key")
		}
		total += n
	}
	if len(asked) != 2 || total != 3 {
		t.Errorf("%d keys in %d requests, want 2 in 3: one asked for twice", len(asked), total)
	}
}
