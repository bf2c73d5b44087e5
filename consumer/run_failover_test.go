package consumer_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/migrations"
)

// The primary is lost, and its address leads to the standby for a while before
// that is promoted: there a transaction can't even be begun.
func TestAFailoverIsWaitedForAlsoWhileTheStandbyTakesNoWrites(t *testing.T) {
	primary := pgtest.Server(t, devstack.PostgresConfig{Settings: map[string]string{"max_wal_senders": "4", "wal_level": "replica"}})
	b := &bench{t: t, pool: pgtest.Connect(t, primary.DSN("postgres"))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	m, err := migrations.New(b.pool, migrations.Config{})
	if err == nil {
		_, err = m.Up(t.Context(), migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.exec("create table applied (n bigint generated always as identity, key text, epoch bigint, seq bigint, by text)")
	standby := pgtest.Replica(t, primary, devstack.ReplicaConfig{})

	var port, connected atomic.Int64
	port.Store(int64(primary.Port()))
	b.connect(func(cfg *pgx.ConnConfig) {
		// Every other session is one in which a standby refuses each statement that is
		// prepared outside of a transaction.
		cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if connected.Add(1)%2 == 0 {
				return nil
			}
			_, err := conn.Exec(ctx, "set default_transaction_isolation = serializable").ReadAll()
			return err
		}
		cfg.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port.Load()))
		}
	})

	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	config := b.config()
	config.Attempts = 1 // a failure that is blamed on an event would park it
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { ended <- consumer.Run(ctx, b.pool, log.source(), config, b.apply("x")) }()
	b.eventually("the first are applied", func() bool { return b.seen.count(consumer.Applied) == 3 })

	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := standby.CatchUp(within); err != nil {
		t.Fatal(err)
	}
	port.Store(int64(standby.Port()))
	if err := primary.Kill(within); err != nil {
		t.Fatal(err)
	}
	log.publish(events("t", "a", 4, 6)...)
	b.eventually("it is refused by the standby, again and again", func() bool {
		return b.seen.failed("during recovery") > 3 && b.seen.failed("in a hot standby") > 3
	})
	if err := standby.Promote(within); err != nil {
		t.Fatal(err)
	}
	b.eventually("the rest is applied", func() bool { return b.seen.count(consumer.Applied) == 6 })
	stop()
	if err := <-ended; err != nil {
		t.Fatalf("Run: %v", err)
	}
	b.want("", effects("a", 1, 6)...)
}
