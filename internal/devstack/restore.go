package devstack

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Backup is a copy of a server's data, from which with the server's archive every later point in time can be restored.
type Backup struct {
	source *Postgres
	copy   *Postgres // has data and no server yet
	used   bool
}

func (p *Postgres) archiveDir() string { return filepath.Join(p.dir, "archive") }

func (p *Postgres) makeArchive() error {
	if !p.cfg.Archive {
		return nil
	}
	if err := os.Mkdir(p.archiveDir(), 0o700); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return giveTo(p.archiveDir(), p.owner)
}

// Backup copies the data of a server that keeps an archive (see PostgresConfig.Archive). Call Discard when done.
func (p *Postgres) Backup(ctx context.Context) (_ *Backup, err error) {
	if !p.cfg.Archive {
		return nil, fmt.Errorf("devstack: back up PostgreSQL on port %d: it keeps no archive", p.port)
	}
	b := &Backup{source: p, copy: &Postgres{cfg: p.cfg, binaries: p.binaries, owner: p.owner, password: p.password}}
	b.copy.cfg.Archive = false
	if b.copy.dir, err = ScratchDir("backup", !p.cfg.Durable, p.owner); err != nil {
		return nil, err
	}
	if b.copy.guard, err = supervise.NewGuard(b.copy.dir); err != nil {
		_ = os.RemoveAll(b.copy.dir)
		return nil, err
	}
	if err := p.ask(ctx, func(conn *pgx.Conn) error { return b.copy.copyOf(ctx, conn, p.dataDir(), true) }); err != nil {
		_ = b.copy.discard()
		return nil, fmt.Errorf("devstack: back up PostgreSQL: %w", err)
	}
	return b, nil
}

// RestorePoint names the present moment, for Restore, and returns when the archive has it.
func (p *Postgres) RestorePoint(ctx context.Context, name string) error {
	return p.ask(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "select pg_create_restore_point($1)", name); err != nil {
			return err
		}
		var segment string
		if err := conn.QueryRow(ctx, "select pg_walfile_name(pg_switch_wal())").Scan(&segment); err != nil {
			return err
		}
		return poll(ctx, conn, "select coalesce(last_archived_wal >= $1, false) from pg_stat_archiver", segment)
	})
}

// Restore starts a server of its own on the backup's data, which recovers from the archive up to a point that
// RestorePoint has named, and goes on from there as a primary on a timeline of its own. It returns when the server can be
// written. The source is left as it is, and must live as long as the recovery does. A backup restores once.
func (b *Backup) Restore(ctx context.Context, point string) (*Postgres, error) {
	if b.used {
		return nil, fmt.Errorf("devstack: restore PostgreSQL: this backup was restored before")
	}
	b.used = true
	p := b.copy
	settings := maps.Clone(p.cfg.Settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["hot_standby"] = "on"
	settings["restore_command"] = "cp " + b.source.archiveDir() + "/%f %p"
	settings["recovery_target_name"] = point
	settings["recovery_target_action"] = "promote"
	p.cfg.Settings = settings
	if err := p.write("recovery.signal", ""); err != nil {
		return nil, fmt.Errorf("devstack: restore PostgreSQL: %w", err)
	}
	if err := p.startOnFreePort(ctx); err != nil {
		return nil, err
	}
	if err := p.ask(ctx, func(conn *pgx.Conn) error { return poll(ctx, conn, "select not pg_is_in_recovery()") }); err != nil {
		return nil, fmt.Errorf("devstack: restore PostgreSQL to %q: %w: %s", point, err, p.logTail())
	}
	return p, nil
}

// Discard ends the server that was restored, if there is one, and removes the backup's data.
func (b *Backup) Discard(ctx context.Context) error { return b.copy.Stop(ctx) }
