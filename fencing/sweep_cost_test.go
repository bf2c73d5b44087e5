package fencing_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Counted by the server for the session's own transaction, so for the very
// statements inside the functions, whatever the planner made of them; and from
// the seventh call on, when generic plans have taken over.
func TestSweepAndCloseReadByIndexHoweverMuchIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const keys, streams, perKey = 2_000, 3, 10
	fill := func(prefix string, n int, at string) {
		w.exec(`insert into fenceline.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token)
			select $1 || i, epoch_floor, 2, 0, epoch_floor - 1, 9223372036854775807 from fenceline.history, generate_series(1, $2::int) i`, prefix, n)
		w.exec(`insert into fenceline.lease select key, epoch, max_issued_token, 'h', null, 'infinity' from fenceline.fence where key like $1 || '%'`, prefix)
		w.exec(`insert into fenceline.turn (key, epoch, token, why, at) select key, epoch, 2, 'acquire', now() - $2::interval from fenceline.fence where key like $1 || '%'`, prefix, at)
		w.exec(`insert into fenceline.head select 't' || s, key, epoch, 7 from fenceline.fence, generate_series(1, $2::int) s where key like $1 || '%'`, prefix, streams)
		// Receipts of the token before the newest one, and of the newest.
		w.exec(`insert into fenceline.receipt (key, epoch, token, step, algo, digest, shard, xid) select key, epoch, 1 + s % 2, s::text, 'a', sha256(''), 0, '5'
			from fenceline.fence, generate_series(1, $2::int) s where key like $1 || '%'`, prefix, perKey)
	}
	fill("kept/", keys, "1 hour")
	fill("due/", 20, "3 days")
	w.exec("vacuum analyze")
	conn := w.session(w.dsn)
	type scan struct {
		Table   string
		Seq     int64
		Read    int64 // rows that whole scans have read
		Fetched int64
	}
	measure := func(what string, most int64, statements ...string) {
		t.Helper()
		_, err := conn.Exec(ctx, "select pg_stat_force_next_flush()") // or the last one's would be counted again
		w.ok(err)
		tx, err := conn.Begin(ctx)
		w.ok(err)
		defer func() { _ = tx.Rollback(ctx) }()
		for _, sql := range statements {
			_, err := tx.Exec(ctx, sql)
			w.ok(err)
		}
		rows, err := tx.Query(ctx, `select relname::text, seq_scan, seq_tup_read, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
			where schemaname = 'fenceline' and relname in ('turn', 'fence', 'lease', 'head', 'receipt', 'outbox_0')`)
		w.ok(err)
		scans, err := pgx.CollectRows(rows, pgx.RowToStructByPos[scan])
		w.ok(err)
		for _, s := range scans {
			if s.Seq != 0 || s.Read != 0 {
				t.Errorf("%s: %d whole scans of %s, %d rows", what, s.Seq, s.Table, s.Read)
			}
			if s.Fetched > most {
				t.Errorf("%s: %d rows of %s by index, want at most %d", what, s.Fetched, s.Table, most)
			}
		}
	}
	const window = "'24 h', '24 h', 500"
	sweep := []string{
		"select fenceline.sweep_floors(" + window + ", '-infinity', 0)",
		"select fenceline.sweep_receipts(" + window + ", '-infinity', 0, 'infinity', 0)",
		"select fenceline.sweep_tombstones(" + window + ", '-infinity', 0, 'infinity', 0, false)",
	}
	for range 7 {
		measure("a sweep of twenty keys among two thousand", 400, sweep...)
	}
	for i := range 7 {
		key := fmt.Sprintf("kept/%d", 100+i)
		measure("a close among two thousand keys", 40, fmt.Sprintf("select fenceline.close('%s', epoch, 2) from fenceline.history h, lateral (select epoch_floor as epoch) e", key))
	}
	w.exec("update fenceline.fence set closed_at = now(), end_xid = '5', end_pos = 0 where key like 'due/%'")
	w.exec("update fenceline.turn set why = 'close' where key like 'due/%'")
	w.exec("delete from fenceline.receipt where key like 'due/%'")
	w.published()
	for range 7 {
		measure("the removal of twenty tombstones", 600, sweep...)
	}
}

// What is dead, but kept by somebody's snapshot, lies before the newest row.
func TestACloseDoesNotReadThroughWhatAHeldSnapshotKeeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	a.commitTo(pos, "0", "a", "b")
	held, err := w.session(w.dsn).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	w.ok(err)
	defer func() { _ = held.Rollback(ctx) }()
	_, err = held.Exec(ctx, "select count(*) from fenceline.head")
	w.ok(err)
	for i := range 300 {
		a.commitTo(pos, fmt.Sprint(i+1), "a", "b")
	}
	conn := w.session(w.dsn)
	tx, err := conn.Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, "select fenceline.close('k', $1, $2)", pos.Epoch, pos.Token)
	w.ok(err)
	var read int64
	w.ok(tx.QueryRow(ctx, "select idx_tup_read from (select sum(pg_stat_get_xact_tuples_returned(indexrelid)) as idx_tup_read from pg_index where indrelid = 'fenceline.head'::regclass) x").Scan(&read))
	if read > 20 {
		t.Errorf("%d entries of the index of heads read for two streams", read)
	}
}
