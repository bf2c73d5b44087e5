package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// countLimit bounds what Status counts, so that it also answers at a backlog of
// millions.
const countLimit = 100_000

// Status is what the database says of the relay at one moment.
type Status struct {
	// Backlog is the number of committed events that the stored cursor hasn't
	// passed, forks included and held streams not. More says that counting
	// stopped at 100,000. After a crash the cursor can be a second behind.
	Backlog int64
	More    bool
	// Oldest is the age of the oldest of them, zero if there is none.
	Oldest time.Duration
	// Held are the held streams, Forks the refused topics.
	Held  []HeldStream
	Forks []ForkStatus
	// Published is false until the cursor has been stored for the first time.
	Published bool
	// CursorAge is the time since the cursor was last stored. An idle relay
	// stores nothing.
	CursorAge time.Duration
	// Holder is the active instance, empty if there is none; LeaseExpires is
	// when a standby could take over if it died now, Epoch and Token its
	// position.
	Holder       string
	LeaseExpires time.Time
	Epoch, Token int64
	// Now is the time on the database's clock.
	Now time.Time
}

// ForkStatus is a topic that the broker refuses, or that is catching up.
type ForkStatus struct {
	// Topic is its name.
	Topic string
	// Reason says in words what is wrong and what to do, Detail what the broker
	// answered.
	Reason, Detail string
	// Since is when it was refused, on the database's clock.
	Since time.Time
	// Backlog is the number of its events that wait, part of Status.Backlog.
	// More says that counting stopped.
	Backlog int64
	More    bool
}

// backlogSQL counts what a cursor has not passed. Two branches as in the
// reader: rows of transactions that ran when s1 was taken, by index (xid, pos);
// rows above the low bound, by primary key. Those of them that lie behind the
// progress inside an open window are published.
const backlogSQL = `
select count(*), min(created_at) from (
  (select o.created_at from unnest($4::xid8[]) x cross join lateral (
     select xid, pos, topic, key, created_at from @schema@.outbox
      where (xid, pos) > (x, 0) and (xid, pos) <= (x, $2) and ` + unpublished + `) o limit $8)
  union all
  (select created_at from @schema@.outbox where pos > $2 and not pg_visible_in_snapshot(xid, $1::pg_snapshot) and ` + unpublished + ` order by pos limit $8)
) u`

const unpublished = `not coalesce(pos <= $3 and pg_visible_in_snapshot(xid, $5::pg_snapshot), false)
  and (topic = any ($6::text[])) = $7
  and not exists (select from @schema@.relay_held h where h.topic = outbox.topic and h.key = outbox.key and outbox.pos >= h.pos)`

// ReadStatus reads what the relays on a schema have stored, in one transaction
// that sees a single moment. It needs no running relay and changes nothing; a
// login needs the role fenceline_monitor.
func ReadStatus(ctx context.Context, pool *pgxpool.Pool, schemaName string) (Status, error) {
	if schemaName == "" {
		schemaName = schema.Default
	}
	var st Status
	if err := schema.Check(ctx, pool, schemaName, schema.Producer); err != nil {
		return st, fmt.Errorf("relay: %w", err)
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return st.read(ctx, tx, schemaName)
	})
	if err != nil {
		return st, fmt.Errorf("relay: read the status: %w", err)
	}
	return st, nil
}

func (st *Status) read(ctx context.Context, tx pgx.Tx, name string) error {
	x := func(sql string) string { return schema.Expand(sql, name) }
	at := start()
	var s1, s2 string
	var stored *time.Time
	err := tx.QueryRow(ctx, x(`select s1::text, low, coalesce(s2::text, ''), last_pos, at, clock_timestamp() from @schema@.relay_checkpoint order by n desc limit 1`)).
		Scan(&s1, &at.low, &s2, &at.last, &stored, &st.Now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&st.Now); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if at, err = at.withSnapshots(s1, s2); err != nil {
			return err
		}
		st.Published, st.CursorAge = true, st.Now.Sub(*stored)
	}

	err = tx.QueryRow(ctx, x(`select holder, expires_at, epoch, token from @schema@.lease where key = $1 and expires_at > $2`), LeaseKey, st.Now).
		Scan(&st.Holder, &st.LeaseExpires, &st.Epoch, &st.Token)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	rows, err := tx.Query(ctx, x(`select topic, key, pos, epoch, seq, reason, detail, since from @schema@.relay_held order by since, topic, key`))
	if err != nil {
		return err
	}
	if st.Held, err = pgx.CollectRows(rows, pgx.RowToStructByPos[HeldStream]); err != nil {
		return err
	}
	forks, err := st.readForks(ctx, tx, x)
	if err != nil {
		return err
	}
	skipped := []string{}
	for i, c := range forks {
		f := &st.Forks[i]
		skipped = append(skipped, f.Topic)
		if f.Backlog, f.More, err = st.count(ctx, tx, x, c, filter{topics: []string{f.Topic}, only: true}); err != nil {
			return err
		}
	}
	_, _, err = st.count(ctx, tx, x, at, filter{topics: skipped})
	return err
}

func (st *Status) readForks(ctx context.Context, tx pgx.Tx, x func(string) string) ([]cursor, error) {
	rows, err := tx.Query(ctx, x(`select topic, s1::text, low, coalesce(s2::text, ''), last_pos, reason, detail, since from @schema@.relay_fork order by since, topic`))
	if err != nil {
		return nil, err
	}
	var cursors []cursor
	var f ForkStatus
	var c cursor
	var s1, s2 string
	_, err = pgx.ForEachRow(rows, []any{&f.Topic, &s1, &c.low, &s2, &c.last, &f.Reason, &f.Detail, &f.Since}, func() error {
		at, err := c.withSnapshots(s1, s2)
		cursors = append(cursors, at)
		st.Forks = append(st.Forks, f)
		return err
	})
	return cursors, err
}

// count adds what a cursor has not passed.
func (st *Status) count(ctx context.Context, tx pgx.Tx, x func(string) string, c cursor, f filter) (int64, bool, error) {
	xids := c.s1.xip
	if xids == nil {
		xids = []uint64{}
	}
	var window *string
	if !c.boundary() {
		window = &c.s2.text
	}
	var n int64
	var oldest *time.Time
	if err := tx.QueryRow(ctx, x(backlogSQL), c.s1.text, c.low, c.last, xids, window, f.list(), f.only, countLimit).Scan(&n, &oldest); err != nil {
		return 0, false, err
	}
	more := n >= countLimit
	st.Backlog += n
	st.More = st.More || more
	if oldest != nil {
		st.Oldest = max(st.Oldest, st.Now.Sub(*oldest))
	}
	return n, more, nil
}
