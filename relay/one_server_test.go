package relay

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// mixed is a pool whose connections are with these servers, one after the other, as
// one with several hosts has them after a failover. The last one has all further ones.
func mixed(t *testing.T, servers ...*devstack.Postgres) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(servers[0].DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		mu.Lock()
		defer mu.Unlock()
		c.Port = uint16(servers[0].Port())
		if len(servers) > 1 {
			servers = servers[1:]
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// On a standby a snapshot lists none of the transactions that run: the event of this
// one would count as published before it is committed, and the primary would store so.
func TestASessionReadsFromTheServerThatItWritesToAndFromNoStandby(t *testing.T) {
	t.Parallel()
	server, pool := ownServer(t, map[string]string{"max_wal_senders": "4", "wal_level": "replica"})
	kafka := newMemory(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	publishAll(t, pool, kafka)
	late := newProducer(t, pool, "late").begin().enter().append("a", "late")
	p.publish("a", "2")
	standby := pgtest.Replica(t, server, devstack.ReplicaConfig{})
	sql := newStatements("fenceline")
	session := func(want string, servers ...*devstack.Postgres) {
		t.Helper()
		s, err := openSession(bg, mixed(t, servers...), kafka, quick().withDefaults(), &sql, leases())
		switch {
		case want == "" && err == nil:
			s.close()
		case err == nil:
			s.close()
			t.Errorf("a session of %d servers, want %q", len(servers), want)
		case want == "" || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "target_session_attrs=primary") || fatal(err):
			t.Errorf("the answer is %v, want one that passes, with %q", err, want)
		}
	}
	session("", server)
	session("is a standby", standby.Postgres, server)
	session("is a standby", server, standby.Postgres)

	// Those that look, and the one that is looked at.
	copies := newMemory(t, "a")
	_, err := Republish(bg, mixed(t, server, server, standby.Postgres), copies, RepublishConfig{Key: "k", Who: "test"})
	var setting *SettingError
	if !errors.As(err, &setting) || !strings.Contains(setting.Remedy, "connect to the primary") || len(copies.log("a")) != 0 {
		t.Errorf("a republish: %v, %d records", err, len(copies.log("a")))
	}

	if _, err := Drain(bg, mixed(t, server, server, standby.Postgres), copies, quick()); !errors.Is(err, errStandby) {
		t.Errorf("a drain: %v", err)
	}
	d := &drainage{pool: mixed(t, standby.Postgres), cfg: quick().withDefaults(), upTo: "3:3:"}
	if _, err := d.left(bg); !errors.Is(err, errStandby) {
		t.Errorf("a drain that looks what is left: %v", err)
	}

	if err := standby.Promote(bg); err != nil {
		t.Fatal(err)
	}
	session("one session is with a server", standby.Postgres, server)
	late.commit()
}
