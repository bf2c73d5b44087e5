package devstack

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func startReplica(t *testing.T, primary *Postgres, cfg ReplicaConfig) *Replica {
	t.Helper()
	replica, err := primary.StartReplica(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return replica
}

// single is the value that a query gives, as text, on a server.
func single(t *testing.T, p *Postgres, sql string) (value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := p.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&value)
	}); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, p *Postgres, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	do(t, p.ask(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}))
}

const marks = "select count(*)::text from mark"

func TestAReplicaShowsWhatWasCommittedBeforeAndAfterItWasMade(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary := startServer(t, PostgresConfig{})
	write(t, primary, "create table mark as select 1 as n")
	replica := startReplica(t, primary, ReplicaConfig{})
	write(t, primary, "insert into mark values (2)")
	do(t, replica.CatchUp(ctx))
	if got := single(t, replica.Postgres, marks); got != "2" {
		t.Errorf("the replica shows %s rows, want 2", got)
	}
	var pg *pgconn.PgError
	err := replica.ask(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "insert into mark values (3)")
		return err
	})
	if !errors.As(err, &pg) || pg.Code != "25006" {
		t.Errorf("a write on the replica: %v, want 25006", err)
	}
	if replica.Version() != primary.Version() {
		t.Errorf("the replica is %s, its primary %s", replica.Version(), primary.Version())
	}
}

func TestAPausedReplicaReceivesAndReplaysNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary := startServer(t, PostgresConfig{})
	write(t, primary, "create table mark as select 1 as n")
	replica := startReplica(t, primary, ReplicaConfig{})
	do(t, replica.CatchUp(ctx))
	do(t, replica.PauseReplay(ctx))
	write(t, primary, "insert into mark values (2)")
	lsn := single(t, primary, "select pg_current_wal_flush_lsn()::text")
	until(t, "the commit is received", func() bool {
		return single(t, replica.Postgres, "select (pg_last_wal_receive_lsn() >= '"+lsn+"')::text") == "true"
	})
	if got := single(t, replica.Postgres, marks); got != "1" {
		t.Errorf("the paused replica shows %s rows, want 1", got)
	}
	do(t, replica.ResumeReplay(ctx))
	do(t, replica.CatchUp(ctx))
	if got := single(t, replica.Postgres, marks); got != "2" {
		t.Errorf("the resumed replica shows %s rows, want 2", got)
	}
}

func TestAPromotedReplicaIsAPrimaryOnATimelineOfItsOwnAndAnotherCanFollowIt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary := startServer(t, PostgresConfig{})
	write(t, primary, "create table mark as select 1 as n")
	promoted, other := startReplica(t, primary, ReplicaConfig{}), startReplica(t, primary, ReplicaConfig{})
	do(t, promoted.CatchUp(ctx))
	do(t, other.CatchUp(ctx))
	do(t, other.Disconnect(ctx))
	do(t, promoted.Disconnect(ctx))
	write(t, primary, "insert into mark values (2)") // which is lost
	do(t, promoted.Promote(ctx))
	write(t, promoted.Postgres, "insert into mark values (10), (11)")
	if got := single(t, promoted.Postgres, "select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"); got != "00000002" {
		t.Errorf("the promoted replica is on timeline %s", got)
	}
	do(t, other.Follow(ctx, promoted.Postgres))
	until(t, "the other replica follows", func() bool { return single(t, other.Postgres, marks) == "3" })
	if got := single(t, primary, marks); got != "2" {
		t.Errorf("the old primary shows %s rows, want 2", got)
	}
}

func TestAReplicaThatStopsLeavesNoSlotBehind(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary := startServer(t, PostgresConfig{})
	replica := startReplica(t, primary, ReplicaConfig{})
	if got := single(t, primary, "select count(*)::text from pg_replication_slots"); got != "1" {
		t.Errorf("%s slots while the replica runs, want 1", got)
	}
	do(t, replica.Stop(ctx))
	if got := single(t, primary, "select count(*)::text from pg_replication_slots"); got != "0" {
		t.Errorf("%s slots are left", got)
	}
	if !gone(replica.dir) {
		t.Errorf("%s is still there", replica.dir)
	}
}
