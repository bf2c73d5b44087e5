package fencing_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// Most of these tests wait for something most of the time: for a timeout, or for a
// session to be seen waiting. So more of them run at a time than there are processors.
const atATime = 5

func TestMain(m *testing.M) {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if n := flag.Lookup("test.parallel"); !told && runtime.GOMAXPROCS(0) < atATime {
		_ = n.Value.Set(strconv.Itoa(atATime))
	}
	os.Exit(pgtest.Main(m))
}

var ctx = context.Background()

// world is a migrated database, with a table of business rows, and a
// superuser's pool to look at it and to play the fault.
type world struct {
	testing.TB
	admin    *pgxpool.Pool
	dsn      string             // the superuser's
	producer string             // a login that is a producer and nothing else
	server   *devstack.Postgres // where it has one of its own
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dsn: pgmigrated.Migrated(t)}
	w.admin = pgtest.Connect(t, w.dsn)
	w.producer = pgmigrated.Login(t, w.dsn, schema.KindProducer)
	w.exec("create table public.result (key text, note text); grant all on public.result to public; grant create on schema public to public")
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.admin.Exec(ctx, sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

// value is the single value that a query of the superuser gives.
func value[T any](w *world, sql string, args ...any) (v T) {
	w.Helper()
	if err := w.admin.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return v
}

// written is what a key has left behind: receipts, business rows, events.
type written struct{ receipts, results, events int }

func (w *world) written(key string) (n written) {
	w.Helper()
	err := w.admin.QueryRow(ctx, `select (select count(*) from fenceline.receipt where key = $1),
		(select count(*) from public.result where key = $1), (select count(*) from fenceline.outbox where key = $1)`, key).
		Scan(&n.receipts, &n.results, &n.events)
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func (w *world) wantWritten(key string, want written) {
	w.Helper()
	if got := w.written(key); got != want {
		w.Errorf("%s has written %+v, want %+v", key, got, want)
	}
}

// expire makes the lease of key free to be taken over, as if its time were over.
func (w *world) expire(key string) {
	w.Helper()
	w.exec("update fenceline.lease set expires_at = clock_timestamp() - interval '1 s' where key = $1", key)
}

// worker is a process: its fences, and the pool with the one connection that
// it works on, whose backend's pid is known.
type worker struct {
	*fencing.Fences
	w    *world
	name string
	pool *pgxpool.Pool
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (w *world) worker(name string) *worker {
	w.Helper()
	return w.workerAt(name, w.producer, 1)
}

func (w *world) workerAt(name, dsn string, conns int, edit ...func(*pgxpool.Config)) *worker {
	w.Helper()
	return w.workerOn(w.poolAt(dsn, conns, edit...), fencing.Config{Holder: name})
}

func (w *world) poolAt(dsn string, conns int, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	w.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		w.Fatal(err)
	}
	cfg.MaxConns = int32(conns)
	for _, f := range edit {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(pool.Close)
	return pool
}

// workerOn is a worker with more to configure.
func (w *world) workerOn(pool *pgxpool.Pool, cfg fencing.Config) *worker {
	w.Helper()
	cfg.AllowUnsafeDatabase, cfg.Logger = true, quiet()
	fences, err := fencing.New(ctx, pool, cfg)
	if err != nil {
		w.Fatal(err)
	}
	// Where a test has one sent behind another, a busy machine has the time to.
	fencing.LendFor(fences, 20*time.Second)
	return &worker{Fences: fences, w: w, name: cfg.Holder, pool: pool}
}

// pid is the backend of the worker's connection, which must be idle.
func (k *worker) pid() uint32 {
	k.w.Helper()
	conn, err := k.pool.Acquire(ctx)
	if err != nil {
		k.w.Fatal(err)
	}
	defer conn.Release()
	return conn.Conn().PgConn().PID()
}

// long is a lease that does not end, nor is renewed, within a test.
var long = fencing.LeaseConfig{TTL: 5 * time.Minute}

func (k *worker) acquire(key string) *fencing.Lease {
	k.w.Helper()
	return k.acquireWith(key, long)
}

func (k *worker) acquireWith(key string, cfg fencing.LeaseConfig) *fencing.Lease {
	k.w.Helper()
	lease, err := k.Acquire(ctx, key, cfg)
	if err != nil {
		k.w.Fatalf("%s acquires %s: %v", k.name, key, err)
	}
	k.w.Cleanup(func() { _ = lease.Release(ctx) })
	return lease
}

// takeOver acquires after the present holder's time is over.
func (k *worker) takeOver(key string) *fencing.Lease {
	k.w.Helper()
	k.w.expire(key)
	return k.acquire(key)
}

func content(step, body string) fencing.Content {
	return fencing.Content{Step: step, Type: "text/plain", Bytes: []byte(body)}
}

// write is what a commit does: one business row and one event.
func write(ctx context.Context, tx fencing.Tx) error {
	if _, err := tx.Exec(ctx, "insert into public.result values ($1, $2)", tx.Gate().Key, tx.Gate().Step); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "result", Payload: []byte(tx.Gate().Step)})
}

// commit writes under a position.
func (k *worker) commit(pos fencing.Position, c fencing.Content) (fencing.Receipt, error) {
	return k.Commit(ctx, pos, c, write)
}

// answer is what a commit in the background gives.
type answer struct {
	receipt fencing.Receipt
	err     error
}

func (k *worker) commitLater(pos fencing.Position, c fencing.Content) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		r, err := k.commit(pos, c)
		ch <- answer{r, err}
	}()
	return ch
}

// paused is a commit that has passed the gate and stands in its callback.
type paused struct {
	pid  uint32
	goOn func()
	done <-chan answer
}

func (k *worker) pauseBehindGate(pos fencing.Position, c fencing.Content) paused {
	k.w.Helper()
	inside, proceed, done := make(chan uint32, 1), make(chan struct{}), make(chan answer, 1)
	goOn := sync.OnceFunc(func() { close(proceed) })
	k.w.Cleanup(goOn)
	go func() {
		r, err := k.Commit(ctx, pos, c, func(ctx context.Context, tx fencing.Tx) error {
			inside <- tx.Conn().PgConn().PID()
			<-proceed
			return write(ctx, tx)
		})
		done <- answer{r, err}
	}()
	select {
	case pid := <-inside:
		return paused{pid, goOn, done}
	case a := <-done:
		k.w.Fatalf("%s did not pass the gate: %v", k.name, a.err)
		panic("unreachable")
	}
}

func (w *world) is(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("the answer is %v, want %v", err, want)
	}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func evidence(w *world, err error) fencing.Evidence {
	w.Helper()
	var r *fencing.RefusedError
	if !errors.As(err, &r) {
		w.Fatalf("%v is not a RefusedError", err)
	}
	return r.Evidence
}

// session is a plain connection, for what the library would not do.
func (w *world) session(dsn string) *pgx.Conn {
	w.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

// later runs a statement in the background.
func later(conn *pgx.Conn, sql string, args ...any) <-chan error {
	ch := make(chan error, 1)
	go func() { _, err := conn.Exec(ctx, sql, args...); ch <- err }()
	return ch
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &pg):
		return pg.Code
	}
	return err.Error()
}

// verdict stands in for a test in which a scenario must fail: it notes the
// failure and ends the scenario, as a test would.
type verdict struct {
	testing.TB
	failed bool
}

func (v *verdict) Helper()               {}
func (v *verdict) Errorf(string, ...any) { v.failed = true }
func (v *verdict) Error(...any)          { v.failed = true }
func (v *verdict) Fatalf(string, ...any) { v.failed = true; runtime.Goexit() }
func (v *verdict) Fatal(...any)          { v.failed = true; runtime.Goexit() }
