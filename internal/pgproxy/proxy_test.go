package pgproxy_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// through starts a proxy in front of a fresh database.
func through(t *testing.T) (proxy *pgproxy.Proxy, direct, proxied string) {
	t.Helper()
	direct = pgtest.DSN(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err = pgproxy.Listen(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	proxied, err = proxy.DSN(direct)
	if err != nil {
		t.Fatal(err)
	}
	return proxy, direct, proxied
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func count(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), "select count(*) from mark").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTheAnswerToCommitIsLostAndTheCommitIsNot(t *testing.T) {
	ctx := context.Background()
	proxy, direct, proxied := through(t)
	watch, conn, other := connect(t, direct), connect(t, proxied), connect(t, proxied)
	if _, err := watch.Exec(ctx, "create table mark (name text)"); err != nil {
		t.Fatal(err)
	}
	dropped := proxy.DropNextCommitAnswer("unlucky")

	insert := func(c *pgx.Conn, name string) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into mark values ($1)", name)
			return err
		})
	}
	if err := insert(other, "lucky"); err != nil {
		t.Fatalf("a transaction without the marker was hit: %v", err)
	}
	if err := insert(conn, "unlucky"); err == nil {
		t.Fatal("the answer arrived")
	}
	<-dropped
	if n := count(t, watch); n != 2 {
		t.Fatalf("%d rows, want both transactions committed", n)
	}
	if err := insert(other, "unlucky"); err != nil {
		t.Fatalf("the order was carried out twice: %v", err)
	}
}

func TestAMarkerOfAnEarlierTransactionDoesNotCount(t *testing.T) {
	ctx := context.Background()
	proxy, direct, proxied := through(t)
	watch, conn := connect(t, direct), connect(t, proxied)
	if _, err := watch.Exec(ctx, "create table mark (name text)"); err != nil {
		t.Fatal(err)
	}
	dropped := proxy.DropNextCommitAnswer("unlucky")
	rollback := errors.New("roll back")
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into mark values ('unlucky')")
		return errors.Join(rollback, err)
	})
	if !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into mark values ('lucky')")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-dropped:
		t.Fatal("an answer was dropped")
	default:
	}
}

func TestAFrozenProxyPassesNothingAndThawsWithoutLoss(t *testing.T) {
	proxy, _, proxied := through(t)
	conn := connect(t, proxied)
	proxy.Freeze()
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "select 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("an answer passed the frozen proxy: %v", err)
	case <-time.After(50 * time.Millisecond): // nothing to wait for: that nothing comes is the point
	}
	proxy.Thaw()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	proxy, _, proxied := through(t)
	conn := connect(t, proxied)
	proxy.Freeze()
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "select 1"); err == nil {
		t.Fatal("the connection survived the proxy")
	}
	goleak.VerifyNone(t, before)
}
