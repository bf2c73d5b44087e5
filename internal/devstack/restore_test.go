package devstack

import (
	"context"
	"testing"
)

func TestABackupIsRestoredToThePointThatWasNamedAndNoFurther(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	source := startServer(t, PostgresConfig{Archive: true})
	write(t, source, "create table mark (name text)")
	write(t, source, "insert into mark values ('before the backup')")
	backup, err := source.Backup(ctx)
	do(t, err)
	t.Cleanup(func() { do(t, backup.Discard(context.Background())) })
	write(t, source, "insert into mark values ('behind the backup')")
	do(t, source.RestorePoint(ctx, "here"))
	write(t, source, "insert into mark values ('behind the point')")
	do(t, source.RestorePoint(ctx, "later"))

	restored, err := backup.Restore(ctx, "here")
	do(t, err)
	if got := single(t, restored, "select string_agg(name, ', ' order by name) from mark"); got != "before the backup, behind the backup" {
		t.Errorf("restored: %s", got)
	}
	write(t, restored, "insert into mark values ('on a timeline of its own')")
	if was, is := single(t, source, timeline), single(t, restored, timeline); was == is {
		t.Errorf("both are on timeline %s", is)
	}
	if got := single(t, source, marks); got != "3" {
		t.Errorf("the source has %s marks", got)
	}
	if _, err := backup.Restore(ctx, "later"); err == nil {
		t.Error("it was restored twice")
	}
}

func TestWithoutAnArchiveThereIsNoBackup(t *testing.T) {
	t.Parallel()
	if _, err := startServer(t, PostgresConfig{}).Backup(context.Background()); err == nil {
		t.Error("there is one")
	}
}

const timeline = "select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
