package relay

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var bg = context.Background()

// producer writes through the functions that every producer uses, statement by
// statement, so that a test can stop between any two of them.
type producer struct {
	t            testing.TB
	pool         *pgxpool.Pool
	key          string
	epoch, token int64
}

var steps atomic.Int64

func newProducer(t testing.TB, pool *pgxpool.Pool, key string) *producer {
	t.Helper()
	p := &producer{t: t, pool: pool, key: key}
	if err := pool.QueryRow(bg, "select epoch, token from fenceline.acquire($1, 'test', interval '1 day', $2, interval '1 s')", key, uuid.New()).Scan(&p.epoch, &p.token); err != nil {
		t.Fatal(err)
	}
	return p
}

// work is a transaction of a producer on a connection of its own.
type work struct {
	p    *producer
	conn *pgx.Conn
	step string
}

// begin opens a transaction that has no transaction id yet.
func (p *producer) begin() *work {
	p.t.Helper()
	conn, err := pgx.ConnectConfig(bg, p.pool.Config().ConnConfig)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close(bg) })
	w := &work{p: p, conn: conn, step: fmt.Sprint(steps.Add(1))}
	w.exec("begin")
	return w
}

func (w *work) exec(sql string, args ...any) {
	w.p.t.Helper()
	if _, err := w.conn.Exec(bg, sql, args...); err != nil {
		w.p.t.Fatal(err)
	}
}

// enter passes the gate: the fence is locked, the transaction has its id.
func (w *work) enter() *work {
	w.p.t.Helper()
	w.exec("select fenceline.enter($1, $2, $3, $4, 'sha256', $5, interval '5 min')", w.p.key, w.p.epoch, w.p.token, w.step, make([]byte, 32))
	return w
}

// append appends one event for each payload.
func (w *work) append(topic string, payloads ...string) *work {
	w.p.t.Helper()
	if err := w.tryAppend(topic, payloads...); err != nil {
		w.p.t.Fatal(err)
	}
	return w
}

func (w *work) tryAppend(topic string, payloads ...string) error {
	n := len(payloads)
	ids, texts, bytes, null := make([]uuid.UUID, n), make([]string, n), make([][]byte, n), make([]*string, n)
	for i := range payloads {
		ids[i], texts[i], bytes[i] = uuid.New(), "test", []byte(payloads[i])
	}
	_, err := w.conn.Exec(bg, "select fenceline.append($1, $2, $3, $4, $5, $6, $7, $7, $8, $7, $8, $8, $9)",
		w.p.key, w.p.epoch, w.p.token, w.step, topic, ids, texts, null, bytes)
	return err
}

func (w *work) commit() {
	w.p.t.Helper()
	w.exec("commit")
	_ = w.conn.Close(bg)
}

// again goes on with the next transaction on the same connection.
func (w *work) again() *work {
	w.p.t.Helper()
	w.step = fmt.Sprint(steps.Add(1))
	w.exec("commit")
	w.exec("begin")
	return w
}

func (w *work) rollback() {
	w.p.t.Helper()
	w.exec("rollback")
	_ = w.conn.Close(bg)
}

// publish appends and commits.
func (p *producer) publish(topic string, payloads ...string) {
	p.t.Helper()
	p.begin().enter().append(topic, payloads...).commit()
}

// eventually polls until what it waits for is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func query[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(bg, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// receive waits for what a hook sends.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
		panic("unreachable")
	}
}
