package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

// lab is a consumer's database, with a table for effects and a guard. Whoever
// works on it has the rights of the consumer's role and no others.
type lab struct {
	*testing.T
	admin, pool *pgxpool.Pool
	cfg         consumer.GuardConfig
	guard       *consumer.Guard
	offset      int64
	fails       map[string]error // by payload: what the handler says of it
}

const life = int64(1_764_000_000_000_000) // an epoch

func newLab(t *testing.T, cfg consumer.GuardConfig) *lab {
	t.Helper()
	t.Parallel()
	dsn := pgmigrated.Migrated(t)
	open := func(role string) *pgxpool.Pool {
		c, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		c.MaxConns = 4
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if role == "" {
				return nil
			}
			_, err := conn.Exec(ctx, "set role "+role)
			return err
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	l := &lab{T: t, admin: open(""), pool: open("fenceline_consumer"), cfg: cfg, fails: map[string]error{}}
	l.exec(`create table public.effect (n bigint generated always as identity, key text, what text);
	        grant select, insert on public.effect to fenceline_consumer`)
	if cfg.Consumer == "" {
		l.cfg.Consumer = "c"
	}
	l.reopen()
	return l
}

// reopen makes a new guard, as another process would.
func (l *lab) reopen() {
	l.Helper()
	g, err := consumer.NewGuard(l.cfg)
	if err != nil {
		l.Fatal(err)
	}
	l.guard = g
}

func (l *lab) exec(sql string, args ...any) {
	l.Helper()
	if _, err := l.admin.Exec(context.Background(), sql, args...); err != nil {
		l.Fatalf("%s: %v", sql, err)
	}
}

func (l *lab) text(sql string, args ...any) string {
	l.Helper()
	var s string
	if err := l.admin.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		l.Fatalf("%s: %v", sql, err)
	}
	return s
}

// handler writes the payload down, or fails as it was told to.
func (l *lab) handler() consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		_, err := tx.Exec(ctx, "insert into public.effect (key, what) values ($1, $2)", d.Key, string(d.Payload))
		return errors.Join(err, l.fails[string(d.Payload)])
	})
}

// apply hands records to the guard in one transaction and commits it.
func (l *lab) apply(recs ...outbox.Record) []consumer.Result {
	l.Helper()
	rs, err := l.try(l.deliver(recs...)...)
	if err != nil {
		l.Fatal(err)
	}
	return rs
}

func (l *lab) try(ds ...consumer.Delivery) (rs []consumer.Result, err error) {
	err = l.tx(func(ctx context.Context, tx pgx.Tx) error {
		rs, err = l.guard.Apply(ctx, tx, ds, l.handler())
		return err
	})
	return rs, err
}

func (l *lab) tx(f func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return f(ctx, tx) })
}

// deliver sends records through the codec, as Kafka would.
func (l *lab) deliver(recs ...outbox.Record) (ds []consumer.Delivery) {
	for i := range recs {
		r := &recs[i]
		ds = append(ds, consumer.NewDelivery(consumer.Partition{Topic: r.Topic}, consumer.KafkaRecord{
			Offset: l.offset, Time: r.CreatedAt, Key: []byte(r.Key), Value: outbox.WireValue(r), Headers: outbox.AppendWireHeaders(nil, r),
		}))
		l.offset++
	}
	return ds
}

// outcomes asserts what became of records, as in "applied 4e" or "parked 4f
// gap"; resumed ones begin with "+".
func (l *lab) outcomes(rs []consumer.Result, want ...string) {
	l.Helper()
	var got []string
	for _, r := range rs {
		s := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Outcome, r.Rule, r.Reason))
		if r.Resumed {
			s = "+" + s
		}
		got = append(got, s)
	}
	if !slices.Equal(got, want) {
		l.Fatalf("got  %q\nwant %q", got, want)
	}
}

// effects asserts what was applied, in order.
func (l *lab) effects(want ...string) {
	l.Helper()
	got := l.text("select coalesce(string_agg(what, ' ' order by n), '') from public.effect")
	if got != strings.Join(want, " ") {
		l.Fatalf("applied %q, want %q", got, strings.Join(want, " "))
	}
}

// at asserts where the guard of key k stands: "epoch/token/seq missed blocked",
// with the epoch relative to life.
func (l *lab) at(want string) {
	l.Helper()
	got := l.text(`select format('%s/%s/%s %s %s', epoch - $1, coalesce(token, 0), seq, missed, coalesce(blocked, 'free')) from fenceline.guard where key = 'k'`, life)
	if got != want {
		l.Fatalf("the guard is at %q, want %q", got, want)
	}
}

func (l *lab) parked() string {
	l.Helper()
	return l.text(`select coalesce(string_agg(seq::text || case kind when 'data' then '' else kind end || ' ' || reason, ', ' order by epoch, from_seq), '') from fenceline.parked`)
}

// ev is an event of stream s, key k; its payload says where it stands.
func ev(epoch, token, seq int64) outbox.Record {
	r := outbox.Record{
		ID: uuid.New(), Type: "test.happened", Source: "test", Topic: "s", Stream: "s", Key: "k", Kind: outbox.KindData,
		Epoch: life + epoch, Token: token, Seq: seq, Payload: fmt.Appendf(nil, "%d.%d", epoch, seq), CreatedAt: time.UnixMilli(1_764_000_000_123),
	}
	if seq == 1 {
		r.History = life
	}
	return r
}

func evs(epoch, from, to int64) (rs []outbox.Record) {
	for s := from; s <= to; s++ {
		rs = append(rs, ev(epoch, 1, s))
	}
	return rs
}

func skip(epoch, from, to int64) outbox.Record {
	r := ev(epoch, 1, to)
	r.Kind, r.From, r.Payload, r.History = outbox.KindSkip, from, nil, 0
	if from == 1 {
		r.History = life
	}
	return r
}

func end(epoch, seq int64) outbox.Record {
	r := ev(epoch, 1, seq)
	r.Kind, r.Payload = outbox.KindEnd, nil
	return r
}

func after(r outbox.Record, epoch, seq int64) outbox.Record {
	r.Prev = &outbox.Prev{Epoch: life + epoch, Seq: seq}
	return r
}

func of(key string, r outbox.Record) outbox.Record {
	r.Key = key
	return r
}
