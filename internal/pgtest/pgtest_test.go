package pgtest_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachTestHasAnEmptyDatabaseOfItsOwn(t *testing.T) {
	ctx := context.Background()
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			if _, err := pool.Exec(ctx, "create table only_here ()"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestADatabaseIsGoneAfterItsTestEvenWhileSomebodyIsConnected(t *testing.T) {
	ctx := context.Background()
	var dsn string
	t.Run("inner", func(t *testing.T) {
		dsn = pgtest.DSN(t)
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn // left open on purpose
	})
	if conn, err := pgx.Connect(ctx, dsn); err == nil {
		_ = conn.Close(ctx)
		t.Fatal("the database is still there")
	}
}

func TestATemplateIsBuiltOnceAndEachCloneIsItsOwn(t *testing.T) {
	ctx := context.Background()
	var built atomic.Int32
	build := func(ctx context.Context, dsn string) error {
		built.Add(1)
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		_, err = conn.Exec(ctx, "create table marks as select 1 as mark")
		return err
	}
	for range 3 {
		pool := pgtest.Connect(t, pgtest.Clone(t, "marks", build))
		var marks int
		if err := pool.QueryRow(ctx, "insert into marks values (2) returning (select count(*) from marks)").Scan(&marks); err != nil {
			t.Fatal(err)
		}
		if marks != 1 {
			t.Fatalf("a clone began with %d rows, not 1", marks)
		}
	}
	if built.Load() != 1 {
		t.Fatalf("built %d times", built.Load())
	}
}

func TestCommitsOfTheSharedServerAreInTheLogWhenAnswered(t *testing.T) {
	pool := pgtest.Pool(t)
	var synchronous string
	if err := pool.QueryRow(context.Background(), "show synchronous_commit").Scan(&synchronous); err != nil {
		t.Fatal(err)
	}
	if synchronous != "on" {
		t.Fatalf("synchronous_commit is %s", synchronous)
	}
}

func TestWaitBlockedSeesWhoWaitsForWhom(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	holder, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	waiter, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer waiter.Release()
	if _, err := holder.Exec(ctx, "select pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(ctx, "select pg_advisory_lock(1)")
		done <- err
	}()
	pgtest.WaitBlocked(t, pool, waiter.Conn().PgConn().PID(), holder.Conn().PgConn().PID())
	select {
	case err := <-done:
		t.Fatalf("the waiter was not blocked: %v", err)
	default:
	}
	if _, err := holder.Exec(ctx, "select pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAServerOfItsOwnComesBackAfterAKillWithWhatWasCommitted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := pgtest.Server(t, devstack.PostgresConfig{})
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	pid := conn.PgConn().PID()
	if _, err := conn.Exec(ctx, "create table kept as select 1 as mark"); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "select 1"); err == nil {
		t.Fatal("a backend survived the kill")
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	conn, err = pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var mark int
	if err := conn.QueryRow(ctx, "select mark from kept").Scan(&mark); err != nil || mark != 1 {
		t.Fatalf("after the restart: %d, %v", mark, err)
	}
	pgtest.WaitGone(t, conn, pid)
}

func TestAReplicaHasWhatItsPrimaryHas(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := pgtest.Server(t, devstack.PostgresConfig{})
	primary := pgtest.Connect(t, server.DSN("postgres"))
	if _, err := primary.Exec(ctx, "create table kept as select 1 as mark"); err != nil {
		t.Fatal(err)
	}
	replica := pgtest.Connect(t, pgtest.Replica(t, server, devstack.ReplicaConfig{}).DSN("postgres"))
	var mark int
	var standby bool
	if err := replica.QueryRow(ctx, "select mark, pg_is_in_recovery() from kept").Scan(&mark, &standby); err != nil || mark != 1 || !standby {
		t.Fatalf("on the replica: %d, in recovery %v, %v", mark, standby, err)
	}
}

func TestTheVersionAskedForIsTheVersionThatRuns(t *testing.T) {
	want := os.Getenv(pgtest.EnvVersion)
	if want == "" {
		return // whatever the machine has will do
	}
	for name, pool := range map[string]pgtest.Querier{"shared": pgtest.Pool(t), "own": pgtest.Connect(t, pgtest.Server(t, devstack.PostgresConfig{}).DSN("postgres"))} {
		var got string
		if err := pool.QueryRow(context.Background(), "select (current_setting('server_version_num')::int / 10000)::text").Scan(&got); err != nil || got != want {
			t.Errorf("%s server: PostgreSQL %s, %v; want %s", name, got, err, want)
		}
	}
}
