package devstack

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"
)

// What a copy of a data directory must not have: files of the running server, and the contents of directories that
// belong to it or are made anew.
var (
	notCopied    = []string{"postmaster.pid", "postmaster.opts", "postgresql.auto.conf.tmp", "current_logfiles", "pg_internal.init"}
	copiedHollow = []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}
)

// backup copies the source's data directory while it runs, and makes the copy a standby.
func (r *Replica) backup(ctx context.Context) error {
	return r.source.ask(ctx, func(conn *pgx.Conn) error {
		// The log from the backup's start on is what the slot keeps and the replica receives.
		if _, err := conn.Exec(ctx, "select pg_create_physical_replication_slot($1, true)", r.slot); err != nil {
			return err
		}
		if err := r.copyOf(ctx, conn, r.source.dataDir(), false); err != nil {
			return err
		}
		conninfo, err := r.source.conninfo()
		if err != nil {
			return err
		}
		return errors.Join(
			r.write("standby.signal", ""),
			r.write("postgresql.auto.conf", "primary_conninfo = '"+conninfo+"'\nprimary_slot_name = '"+r.slot+"'\n"),
		)
	})
}

// copyOf makes this server's data of those in a directory, whose running server conn is connected to. PostgreSQL calls
// this the low-level backup: between its start and its stop files may be copied in any order and torn; the log from the
// start on repairs them. Where it comes from an archive, archived waits until it is all there. Prebuilt binaries come
// without pg_basebackup.
func (p *Postgres) copyOf(ctx context.Context, conn *pgx.Conn, from string, archived bool) error {
	if _, err := conn.Exec(ctx, "select pg_backup_start('devstack', true)"); err != nil {
		return err
	}
	if err := p.copyData(from); err != nil {
		return err
	}
	// The same session: PostgreSQL gives a backup up when its session ends.
	var label string
	if err := conn.QueryRow(ctx, "select labelfile from pg_backup_stop($1)", archived).Scan(&label); err != nil {
		return err
	}
	return p.write("backup_label", label)
}

func (p *Postgres) write(name, content string) error {
	file := filepath.Join(p.dataDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		return err
	}
	return giveTo(file, p.owner)
}

func (p *Postgres) copyData(from string) error {
	to := p.dataDir()
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server removes files as it likes: the log says so
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case entry.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
			if err := giveTo(target, p.owner); err != nil {
				return err
			}
			if slices.Contains(copiedHollow, name) {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || slices.Contains(notCopied, entry.Name()):
			return nil
		}
		err = copyFile(path, target)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return giveTo(target, p.owner)
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
