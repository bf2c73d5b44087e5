package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// Behind a pooler in transaction mode, statements often can't be prepared.
func TestAProducerMayUseAnyQueryExecModeOfPgx(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			dsn := pgmigrated.Migrated(t)
			cfg, err := pgxpool.ParseConfig(pgmigrated.Login(t, dsn, schema.KindProducer))
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			fences, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
			if err != nil {
				t.Fatal(err)
			}
			lease, err := fences.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			_, err = lease.Commit(ctx, fencing.Content{Step: "s", Bytes: []byte("x")}, func(ctx context.Context, tx fencing.Tx) error {
				if err := tx.SetResult([]byte{0, 1, 0xff}); err != nil {
					return err
				}
				return outbox.Append(ctx, tx, outbox.Event{Topic: "t", Type: "a", Payload: []byte{0, 0xff, '\''}, Headers: []outbox.Header{{Name: "h", Value: "it's"}}}, outbox.Event{Topic: "t", Type: "b"})
			})
			if err != nil {
				t.Fatal(err)
			}
			again, err := fences.Commit(ctx, lease.Position(), fencing.Content{Step: "s", Bytes: []byte("x")}, nothing)
			if err != nil || !again.Replayed || string(again.Result) != "\x00\x01\xff" {
				t.Errorf("the replay is %+v, %v", again, err)
			}
			if err := lease.Release(ctx); err != nil {
				t.Error(err)
			}
			var got string
			if err := pgtest.Connect(t, dsn).QueryRow(ctx, "select string_agg(seq || type || coalesce(encode(payload, 'hex'), 'null') || coalesce(headers->>1, ''), ' ' order by seq) from fenceline.outbox").Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != "1a00ff27it's 2bnull" {
				t.Errorf("the outbox has %s", got)
			}
		})
	}
}

func nothing(context.Context, fencing.Tx) error { return nil }
