package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// ReplicaConfig configures Postgres.StartReplica.
type ReplicaConfig struct {
	// Settings are server settings beside the primary's own, such as max_standby_streaming_delay. Defaults to none.
	Settings map[string]string
}

// Replica is a standby that streams from the server that it was made of, and can be read. Everything that its Postgres
// can do it can do as well.
type Replica struct {
	*Postgres
	source *Postgres
	slot   string // on source
}

// StartReplica makes a copy of a running server's data and starts it as its streaming replica, with the same binaries
// and password on a port of its own; it returns when the replica accepts connections. Nothing that was committed before
// is missing then, except what the replica has not replayed yet: see Replica.CatchUp. Call Stop when done, best before
// the primary's.
func (p *Postgres) StartReplica(ctx context.Context, cfg ReplicaConfig) (_ *Replica, err error) {
	settings := maps.Clone(p.cfg.Settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["hot_standby"] = "on"
	// A connection that is lost, or a primary that is promoted, is noticed within a second and not within five.
	settings["wal_retrieve_retry_interval"] = "100ms"
	maps.Copy(settings, cfg.Settings)
	r := &Replica{source: p, slot: "replica_" + strings.ToLower(rand.Text()[:16]), Postgres: &Postgres{
		cfg: p.cfg, binaries: p.binaries, owner: p.owner, password: p.password,
	}}
	r.cfg.Settings, r.cfg.Archive = settings, false
	if r.dir, err = ScratchDir("replica", !p.cfg.Durable, r.owner); err != nil {
		return nil, err
	}
	if r.guard, err = supervise.NewGuard(r.dir); err != nil {
		_ = os.RemoveAll(r.dir)
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = r.dropSlot()
			_ = r.discard()
		}
	}()
	if err := r.backup(ctx); err != nil {
		return nil, fmt.Errorf("devstack: copy PostgreSQL for a replica: %w", err)
	}
	if err := r.startOnFreePort(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// PauseReplay stops the replay of what is received; it returns when nothing more is replayed. Receiving goes on.
func (r *Replica) PauseReplay(ctx context.Context) error {
	return r.ask(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "select pg_wal_replay_pause()"); err != nil {
			return err
		}
		// A pause is only requested: until the state says so a record may still be replayed.
		return poll(ctx, conn, "select pg_get_wal_replay_pause_state() = 'paused'")
	})
}

// ResumeReplay ends PauseReplay.
func (r *Replica) ResumeReplay(ctx context.Context) error {
	return r.ask(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "select pg_wal_replay_resume()")
		return err
	})
}

// CatchUp waits until the replica has replayed all that its primary has flushed by now.
func (r *Replica) CatchUp(ctx context.Context) error {
	var flushed string
	if err := r.source.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end::text").Scan(&flushed)
	}); err != nil {
		return err
	}
	return r.ask(ctx, func(conn *pgx.Conn) error {
		return poll(ctx, conn, "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)", flushed)
	})
}

// Promote makes the replica a primary on a timeline of its own, and returns when it can be written. The server that it
// was a replica of is left as it is.
func (r *Replica) Promote(ctx context.Context) error {
	return r.ask(ctx, func(conn *pgx.Conn) error {
		var promoted bool
		if err := conn.QueryRow(ctx, "select pg_promote(true, 60)").Scan(&promoted); err != nil {
			return err
		}
		if !promoted {
			return errors.New("it is still in recovery")
		}
		return nil
	})
}

// Disconnect ends the receiving, as a broken network would; what was received goes on being replayed. It returns when
// no receiver runs. Follow connects again.
func (r *Replica) Disconnect(ctx context.Context) error {
	if err := r.setUpstream(ctx, ""); err != nil {
		return err
	}
	return r.ask(ctx, func(conn *pgx.Conn) error {
		return poll(ctx, conn, "select not exists (select from pg_stat_wal_receiver)")
	})
}

// Follow makes the replica stream from another server: its own primary again, another replica, or one that was
// promoted, whose timeline it then follows. It doesn't wait for the connection.
func (r *Replica) Follow(ctx context.Context, upstream *Postgres) error {
	conninfo, err := upstream.conninfo()
	if err != nil {
		return err
	}
	return r.setUpstream(ctx, conninfo)
}

// Stop ends the replica, removes its data, and drops its slot on the server that it was made of.
func (r *Replica) Stop(ctx context.Context) error {
	r.mu.Lock()
	stopped := r.stopped
	r.mu.Unlock()
	if stopped {
		return nil
	}
	return errors.Join(r.Postgres.Stop(ctx), r.dropSlot())
}

func (r *Replica) setUpstream(ctx context.Context, conninfo string) error {
	return r.ask(ctx, func(conn *pgx.Conn) error {
		// The slot is its first upstream's; others keep enough log anyway (wal_keep_size).
		for _, sql := range []string{
			"alter system set primary_slot_name = ''",
			"alter system set primary_conninfo = '" + strings.ReplaceAll(conninfo, "'", "''") + "'",
			"select pg_reload_conf()",
		} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// dropSlot keeps a primary that lives on from collecting log for a replica that doesn't. A primary that is gone needs
// none of it.
func (r *Replica) dropSlot() error {
	if r.source.PID() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return r.source.ask(ctx, func(conn *pgx.Conn) error {
		// The primary may take a moment to notice that nobody receives any more.
		if err := poll(ctx, conn, "select not exists (select from pg_replication_slots where slot_name = $1 and active)", r.slot); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1", r.slot)
		return err
	})
}

// ask connects as the superuser, and names the server in the error.
func (p *Postgres) ask(ctx context.Context, what func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = what(conn)
	}
	if err != nil {
		return fmt.Errorf("devstack: PostgreSQL on port %d: %w", p.port, err)
	}
	return nil
}

// conninfo is how libpq, which a replica connects with, is told the way to this server.
func (p *Postgres) conninfo() (string, error) {
	u, err := url.Parse(p.DSN(""))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("host=%s port=%s user=postgres password=%s sslmode=disable", u.Hostname(), u.Port(), p.password), nil
}

// poll asks every two milliseconds.
func poll(ctx context.Context, conn *pgx.Conn, sql string, args ...any) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		var ok bool
		if err := conn.QueryRow(ctx, sql, args...).Scan(&ok); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", sql, ctx.Err())
		case <-ticker.C:
		}
	}
}
