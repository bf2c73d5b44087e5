package pgpooler_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/fenceline/fenceline/internal/pgpooler"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

func listen(t *testing.T, dsn string, n int, reset bool) *pgpooler.Pooler {
	t.Helper()
	cfg := pgpooler.Config{Reset: reset}
	for range n {
		cfg.Backends = append(cfg.Backends, dsn)
	}
	p, err := pgpooler.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

func pid(t *testing.T, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}) (n int) {
	t.Helper()
	if err := q.QueryRow(ctx, "select pg_backend_pid()").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEachTransactionGetsAnotherBackendAndKeepsItToItsEnd(t *testing.T) {
	conn := connect(t, listen(t, pgtest.DSN(t), 2, false).DSN("default_query_exec_mode=exec"))
	for range 3 {
		before := pid(t, conn)
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		first, second := pid(t, tx), pid(t, tx)
		if first != second || first == before {
			t.Errorf("backends %d, then %d and %d in one transaction", before, first, second)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheExchangesOfOnePipelineGoToDifferentBackends(t *testing.T) {
	conn := connect(t, listen(t, pgtest.DSN(t), 2, false).DSN(""))
	pipeline := conn.PgConn().StartPipeline(ctx)
	for range 3 {
		pipeline.SendQueryParams("select pg_backend_pid()::text", nil, nil, nil, nil)
		if err := pipeline.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	// All three are under way before the first answer is read.
	pids := map[string]bool{}
	for range 3 {
		results, err := pipeline.GetResults()
		if err != nil {
			t.Fatal(err)
		}
		reader, ok := results.(*pgconn.ResultReader)
		if !ok || !reader.NextRow() {
			t.Fatalf("%T without a row", results)
		}
		pids[string(reader.Values()[0])] = true
		if _, err := reader.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := pipeline.GetResults(); err != nil { // Sync's
			t.Fatal(err)
		}
	}
	if err := pipeline.Close(); err != nil {
		t.Fatal(err)
	}
	if len(pids) != 2 {
		t.Errorf("the pipeline ran on %v", pids)
	}
}

func TestNothingOfASessionIsLeftForTheNextTransaction(t *testing.T) {
	conn := connect(t, listen(t, pgtest.DSN(t), 1, true).DSN("default_query_exec_mode=exec"))
	if _, err := conn.Exec(ctx, "set application_name = 'mine'"); err != nil {
		t.Fatal(err)
	}
	var name string
	if err := conn.QueryRow(ctx, "show application_name").Scan(&name); err != nil || name == "mine" {
		t.Errorf("%q, %v", name, err)
	}
}

func TestWhoGoesInTheMiddleOfATransactionLeavesNothingOpen(t *testing.T) {
	dsn := pgtest.DSN(t)
	admin := pgtest.Connect(t, dsn)
	p := listen(t, dsn, 1, false)
	conn := connect(t, p.DSN("default_query_exec_mode=exec"))
	if _, err := conn.Exec(ctx, "create table mark (n int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "begin; insert into mark values (1)"); err != nil {
		t.Fatal(err)
	}
	gone := pid(t, conn)
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitGone(t, admin, uint32(gone))
	next := connect(t, p.DSN("default_query_exec_mode=exec"))
	var n int
	if err := next.QueryRow(ctx, "select count(*) from mark").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestRowsAreCopiedAndARequestToCancelReachesTheBackend(t *testing.T) {
	dsn := pgtest.DSN(t)
	admin := pgtest.Connect(t, dsn)
	p := listen(t, dsn, 2, true)
	conn := connect(t, p.DSN("default_query_exec_mode=exec"))
	if _, err := conn.Exec(ctx, "create table mark (n int)"); err != nil {
		t.Fatal(err)
	}
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"mark"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}, {2}, {3}}))
	if err != nil || n != 3 {
		t.Fatalf("%d rows, %v", n, err)
	}
	told := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "select pg_sleep(600)")
		told <- err
	}()
	pgtest.WaitTrue(t, admin, "select exists (select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database())")
	if err := conn.PgConn().CancelRequest(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-told:
		if err == nil {
			t.Error("it was not cancelled")
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not cancelled")
	}
	if _, err := conn.Exec(ctx, "select 1"); err != nil {
		t.Error(err)
	}
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	dsn := pgtest.DSN(t)
	before := goleak.IgnoreCurrent()
	p, err := pgpooler.Listen(pgpooler.Config{Backends: []string{dsn, dsn}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, p.DSN("default_query_exec_mode=exec"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "select 1"); err == nil {
		t.Error("the connection survived the pooler")
	}
	_ = conn.Close(ctx)
	goleak.VerifyNone(t, before)
}
