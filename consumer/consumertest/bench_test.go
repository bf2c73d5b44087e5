package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/consumertest"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// service is a consumer's database with a table and a handler.
func service(t *testing.T) (*pgxpool.Pool, consumer.HandlerFunc) {
	t.Helper()
	pool := pgtest.Pool(t)
	m, err := migrations.New(pool, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = m.Up(t.Context(), migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "create table effect (n bigint generated always as identity, key text, what text)"); err != nil {
		t.Fatal(err)
	}
	return pool, func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if string(d.Payload) == "poison" {
			return errors.New("poison")
		}
		_, err := tx.Exec(ctx, "insert into effect (key, what) values ($1, coalesce($2, 'tombstone'))", d.Key, d.Payload)
		return err
	}
}

func effects(t *testing.T, pool *pgxpool.Pool, key string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "select what from effect where key = $1 order by n", key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDeliverTellsWhatBecameOfEachRecordInItsOrder(t *testing.T) {
	pool, h := service(t)
	bench := consumertest.Run(t, pool, consumer.Config{}, h)
	s := consumertest.NewStream("quakes", "ci")
	a, b, c := s.Event("x", []byte("1")), s.Event("x", nil), s.Event("x", []byte("3"))
	bench.Deliver(a, c, a).Want(consumer.Applied, consumer.Parked, consumer.Duplicate)
	bench.Deliver(b).Want(consumer.Applied).WantResumed(c)
	skip, end := s.Skip(2), s.End()
	s.NewLife()
	s.Takeover()
	d := s.Event("x", []byte("5"))
	bench.Deliver(skip, end, d, a).Want(consumer.Absorbed, consumer.Absorbed, consumer.Applied, consumer.Stale)
	bench.DeliverRaw(consumer.KafkaRecord{Value: []byte("?")}).Want(consumer.Quarantined)
	if got, want := effects(t, pool, "ci"), []string{"1", "tombstone", "3", "5"}; !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

func TestAFailingEventIsParkedOrDeadLetteredAsByRun(t *testing.T) {
	for policy, want := range map[consumer.Policy][]consumer.Outcome{
		consumer.Strict: {consumer.Applied, consumer.Parked, consumer.Parked},
		consumer.State:  {consumer.Applied, consumer.DeadLettered, consumer.Applied},
	} {
		t.Run(string(policy), func(t *testing.T) {
			pool, h := service(t)
			bench := consumertest.Run(t, pool, consumer.Config{Policy: policy}, h)
			s := consumertest.NewStream("quakes", "ci")
			bench.Deliver(s.Event("x", []byte("1")), s.Event("x", []byte("poison")), s.Event("x", []byte("3"))).Want(want...)
		})
	}
}

func TestAStormEndsAsAPlainCountWhateverItsOrder(t *testing.T) {
	pool, h := service(t)
	for seed := range uint64(3) {
		key := fmt.Sprint("k", seed)
		s := consumertest.NewStream("quakes", key)
		var records []outbox.Record
		var want []string
		for i := range 40 {
			if i == 20 {
				records = append(records, s.End())
				s.NewLife()
			}
			want = append(want, fmt.Sprint(i))
			records = append(records, s.Event("x", []byte(want[i])))
		}
		bench := consumertest.Run(t, pool, consumer.Config{Name: key}, h)
		d := bench.Storm(seed, records...)
		if got := effects(t, pool, key); !slices.Equal(got, want) {
			t.Errorf("seed %d: effects %v", seed, got)
		}
		if n := d.Count(consumer.Applied); n != len(want) {
			t.Errorf("seed %d: %d applied, want %d: %s", seed, n, len(want), d)
		}
		if d.Count(consumer.Parked) == 0 || d.Count(consumer.Duplicate) == 0 {
			t.Errorf("seed %d: the storm had no hole or no duplicate", seed)
		}
	}
}

// recorder collects what a test would be told.
type recorder struct {
	testing.TB
	failures int
}

func (r *recorder) Errorf(string, ...any) { r.failures++ }
func (r *recorder) Helper()               {}

func TestWhatIsWantedAndNotSoFailsTheTest(t *testing.T) {
	pool, h := service(t)
	r := &recorder{TB: t}
	bench := consumertest.Run(r, pool, consumer.Config{}, h)
	s := consumertest.NewStream("quakes", "ci")
	a := s.Event("x", []byte("1"))
	s.Hole(1)
	b := s.Event("x", []byte("3"))
	d := bench.Deliver(a, b)
	d.Want(consumer.Applied, consumer.Applied)
	d.Want(consumer.Applied)
	d.WantResumed(b)
	if r.failures != 3 {
		t.Errorf("%d failures, want 3", r.failures)
	}
	d.Want(consumer.Applied, consumer.Parked).WantResumed()
	if r.failures != 3 {
		t.Error("what is so has failed the test")
	}
}

// readiness is an observer that is told of partitions as well.
type readiness struct{ told chan consumer.PartitionState }

func (r readiness) Committed(consumer.Committed)                {}
func (r readiness) Failing(consumer.Failure)                    {}
func (r readiness) Alarm(consumer.Alarm)                        {}
func (r readiness) PartitionChanged(c consumer.PartitionChange) { r.told <- c.State }

func TestTheObserverOfATestIsToldOfPartitionsAsByRun(t *testing.T) {
	pool, h := service(t)
	r := readiness{make(chan consumer.PartitionState, 10)}
	consumertest.Run(t, pool, consumer.Config{Observer: r}, h)
	select {
	case is := <-r.told:
		if is != consumer.Reading {
			t.Errorf("told %s, want %s", is, consumer.Reading)
		}
	case <-time.After(consumertest.Patience):
		t.Error("it is told nothing")
	}
}
