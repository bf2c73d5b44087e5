package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/migrations"
)

// workload is the same for every arm: event i belongs to key i mod keys, and is
// the (i / keys + 1)-th of its key. The payload says which one it is.
type workload struct {
	Events  int `json:"events"`
	Keys    int `json:"keys"`
	Payload int `json:"payload_bytes"`
	// Transaction is how many events the loader commits at a time.
	Transaction int `json:"events_per_transaction"`
}

// payloadSQL gives the payload of event i of the statement's generate_series.
// The seq is a text of twenty digits at a fixed place, for whoever reads it back.
func (w workload) payloadSQL() string {
	return fmt.Sprintf(`convert_to('{"seq":"' || lpad((i / %d + 1)::text, 20, '0') || '","key":"' || 'key-' || i %% %d || '","pad":"' || repeat('x', %d) || '"}', 'UTF8')`, w.Keys, w.Keys, max(0, w.Payload-60))
}

const seqAt, seqDigits = len(`{"seq":"`), 20

// fill inserts all events and lets the database settle.
func (w workload) fill(ctx context.Context, conn *pgx.Conn, insert string) error {
	if err := w.insert(ctx, conn, insert); err != nil {
		return err
	}
	return settle(ctx, conn)
}

// insert runs an insert of rows i in [from, to) until all events are there, a
// transaction for each piece. $1 and $2 are from and to-1.
func (w workload) insert(ctx context.Context, conn *pgx.Conn, insert string) error {
	for from := 0; from < w.Events; from += w.Transaction {
		to := min(from+w.Transaction, w.Events)
		if _, err := conn.Exec(ctx, insert, from, to-1); err != nil {
			return fmt.Errorf("load events %d to %d: %w", from, to, err)
		}
	}
	return nil
}

// settle makes statistics and visibility what they are after a while; what is
// measured begins without dirty buffers.
func settle(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{"vacuum analyze", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// fillFenceline puts the events into an outbox as its producers would leave
// it, without going through the gate for each: the relay can't tell.
func fillFenceline(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	if err := migrateFenceline(ctx, conn); err != nil {
		return err
	}
	if err := insertFenceline(ctx, conn, w, topic); err != nil {
		return err
	}
	return settle(ctx, conn)
}

func migrateFenceline(ctx context.Context, conn *pgx.Conn) error {
	m, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = m.Up(ctx, migrations.UpOptions{})
	}
	return err
}

func insertFenceline(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	return w.insert(ctx, conn, strings.ReplaceAll(fmt.Sprintf(`
		insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, contenttype, history)
		select gen_random_uuid(), 'bench', 'key-' || i %% KEYS, 'bench.event', %s, '%s', 'key-' || i %% KEYS, fenceline._shard('key-' || i %% KEYS),
		       h.since, 1, i / KEYS + 1, 'bench', 'application/json', case when i / KEYS = 0 then h.since end
		  from generate_series($1::bigint, $2::bigint) i, fenceline.history h order by i`, w.payloadSQL(), topic), "KEYS", fmt.Sprint(w.Keys)))
}

// plainTable is the outbox that tutorials teach.
const plainTable = `create table outbox (
  id         bigint generated always as identity primary key,
  event_id   uuid not null,
  topic      text not null,
  key        text not null,
  type       text not null,
  payload    bytea not null,
  created_at timestamptz not null default clock_timestamp())`

func createPlain(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, plainTable)
	return err
}

func fillPlain(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	if err := createPlain(ctx, conn); err != nil {
		return err
	}
	return w.fill(ctx, conn, strings.ReplaceAll(fmt.Sprintf(`
		insert into outbox (event_id, topic, key, type, payload)
		select gen_random_uuid(), '%s', 'key-' || i %% KEYS, 'bench.event', %s from generate_series($1::bigint, $2::bigint) i order by i`, topic, w.payloadSQL()), "KEYS", fmt.Sprint(w.Keys)))
}

func (w workload) key(i int) string { return fmt.Sprintf("key-%d", i%w.Keys) }

// payload is what payloadSQL gives, for those who don't load with SQL.
func (w workload) payload(i int) []byte {
	return fmt.Appendf(nil, `{"seq":"%020d","key":"%s","pad":"%s"}`, i/w.Keys+1, w.key(i), strings.Repeat("x", max(0, w.Payload-60)))
}
