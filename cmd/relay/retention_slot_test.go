package main

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func TestWhatTheSlotOfAnotherPublisherHasConfirmedIsRetainedLikeOurOwn(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Exec(t, dsn, "select pg_create_logical_replication_slot(current_database() || '_slot', 'pgoutput')")
	t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			_, err = conn.Exec(ctx, "select pg_drop_replication_slot(current_database() || '_slot')")
			_ = conn.Close(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/") + "_slot"
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", `{}`)
	cmdtest.Exec(t, dsn, "update fenceline.outbox set created_at = created_at - interval '30 days'")
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay")}
	want(t, cmdtest.Run(t, env, "relay", "retention", "-slot", name, "-slot-wait", "1s"), 1, "has not confirmed what is committed", "not being read")
	want(t, cmdtest.Run(t, env, "relay", "retention"), 0, "the next partition has begun", "removed   nothing")
	// Its reader has read beyond what is committed now, as a heartbeat makes it.
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := pgx.Connect(ctx, dsn)
		for err == nil && ctx.Err() == nil {
			_, err = conn.Exec(ctx, "select pg_logical_emit_message(false, 'test', ''), pg_replication_slot_advance($1, pg_current_wal_flush_lsn()), pg_sleep(0.02)", name)
		}
		if ctx.Err() == nil {
			t.Error(err)
		}
		_ = conn.Close(context.WithoutCancel(ctx))
	}()
	want(t, cmdtest.Run(t, env, "relay", "retention", "-slot", name), 0, "1 event taken for published, up to pos ", "not followed before", "removed   outbox_0")
	want(t, cmdtest.Run(t, env, "relay", "retention", "-slot", name), 0, "nothing more to take for published")
	cmdtest.Commit(t, dsn, "quakes", "nc", "quake.reported", `{}`, `{}`)
	r := cmdtest.Run(t, env, "relay", "retention", "-slot", name, "-json")
	want(t, r, 0, `"events": 2`, `"last_pos": `, `"before_slot": false`)
	operator := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, operator, "relay", "retention", "-slot", name), 1, "fenceline_relay")
	stop()
	<-done
}
