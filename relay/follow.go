package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// FollowConfig configures [Follow].
type FollowConfig struct {
	// Schema is that of the outbox. Defaults to fenceline.
	Schema string
	// Slot is the logical replication slot by which somebody else publishes the
	// outbox, such as Debezium. Required.
	Slot string
	// Wait is how long to wait until the slot has confirmed what is committed
	// now: longer than the pause between two of its confirmations. At least a
	// second. Defaults to one minute.
	Wait time.Duration
	// AllowUnsafeDatabase is that of [Config]. Defaults to false.
	AllowUnsafeDatabase bool
	// Logger is told what can't be returned. Defaults to slog.Default().
	Logger *slog.Logger
}

// Errors of Follow, for errors.Is. Nothing was moved.
var (
	// ErrSlotBehind: the slot has not confirmed in time, or is not there. Is its
	// reader running, and does it have a heartbeat?
	ErrSlotBehind = errors.New("relay: the slot has not confirmed what is committed")
	// ErrRelayRuns: relays hold shards. They move their cursors themselves.
	ErrRelayRuns = errors.New("relay: relays are running")
	// ErrWaiting: a stream is held, or a topic refused, since the time when relays
	// published. The slot's reader may never see those events.
	ErrWaiting = errors.New("relay: events wait for an operator since relays published")
	// ErrSlotForeign: the slot's plugin is not pgoutput, by which the outbox is read
	// (docs/debezium.md). What its reader confirms says nothing of the outbox.
	ErrSlotForeign = errors.New("relay: the slot is not one by which the outbox is published")
)

// FollowReport is what [Follow] has taken for published.
type FollowReport struct {
	// Events is how many events count as published now that did not before. Pos
	// and At are the position and the time of the newest of them; zero without
	// any.
	Events int64
	Pos    int64
	At     time.Time
	// Unproven says that these events were appended since a relay had shards, or
	// nobody had any: this slot was not followed before. A slot's reader gets
	// nothing that was committed before the slot was made, and when that was the
	// database doesn't tell. So be sure that such events were published otherwise,
	// by a snapshot of the reader's or by the relays. False without events.
	Unproven bool
}

// Follow takes note of what a slot's reader has published, as if a relay had:
// it stores where the slot is as the relays' cursors. So retention removes what
// is published and nothing else, tombstones go when they may, and a relay that
// is started later goes on from there, with copies of what came after.
//
// It is one step, to be made now and then while no relay runs; what is committed
// after it was called doesn't count. A login needs the role fenceline_relay.
// What it can't know: whether the slot's reader has published what was committed
// before there was a slot; the report says when there may be such events. See
// docs/debezium.md.
//
// The argument. A transaction that is visible in a snapshot S had written its
// commit into the server's log before S was taken. So its commit is below the
// log's end L, if that is read after S; and when the slot has confirmed L, its
// reader has published every row that is visible in S. S is then a cursor of
// the relay like any other. S and L, the waiting and the storing are in one
// session: after a crash the server gives transaction ids out again, and S would
// contain rows that came later.
func Follow(ctx context.Context, pool *pgxpool.Pool, cfg FollowConfig) (FollowReport, error) {
	var report FollowReport
	err := followSlot(ctx, pool, cfg, &report)
	return report, err
}

func followSlot(ctx context.Context, pool *pgxpool.Pool, cfg FollowConfig, report *FollowReport) error {
	name := cmp.Or(cfg.Schema, schema.Default)
	wait := cmp.Or(cfg.Wait, time.Minute)
	if cfg.Slot == "" || wait < time.Second {
		return fmt.Errorf("relay: follow: slot %q, wait %v: name the slot, and wait for a second at least", cfg.Slot, wait)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	own := Config{Schema: name, Name: "slot " + cfg.Slot, AllowUnsafeDatabase: cfg.AllowUnsafeDatabase, Logger: log}.withDefaults()
	if err := check(ctx, pool, own); err != nil {
		return err
	}
	fences, err := fencing.New(ctx, pool, fencing.Config{Schema: name, Holder: own.Name, System: true, AllowUnsafeDatabase: own.AllowUnsafeDatabase, Logger: log})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	sql := newStatements(name)
	f := &follower{cfg: cfg, wait: wait, sql: &sql, share: newShare(pool, fences, own, &sql), x: func(s string) string { return schema.Expand(s, name) }}
	// Not one of the pool's: it is held while leases are asked for, and those take
	// others from the pool, which may have no more than one.
	conn, err := dial(ctx, pool, writerSettings)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	f.conn, f.report = conn, report
	return f.run(ctx)
}

type follower struct {
	cfg   FollowConfig
	wait  time.Duration
	conn  *pgx.Conn // of everything between the snapshot and its being stored
	sql   *statements
	share *share
	x     func(string) string

	report *FollowReport
	before bool // this slot was followed, and no relay had a shard since
}

func (f *follower) run(ctx context.Context) error {
	if err := f.nothingWaits(ctx); err != nil {
		return err
	}
	if err := f.isOurs(ctx); err != nil {
		return err
	}
	// There before the snapshot: one that is made later confirms by its creation
	// what nobody has read from it.
	switch _, found, err := f.ask(ctx, "0/0"); {
	case err != nil:
		return err
	case found == noSlot:
		return fmt.Errorf("%w: slot %q: %s", ErrSlotBehind, f.cfg.Slot, noSlot)
	}
	// A bound that was stored before the snapshot is taken holds for it.
	var low int64
	var old []int64
	if err := f.conn.QueryRow(ctx, f.sql.loadPair, allShards.list()).Scan(&low, &old); err != nil {
		return fmt.Errorf("relay: follow: load the cursors: %w", err)
	}
	// In this order, each in a statement of its own; see Follow.
	var seen, end string
	err := f.conn.QueryRow(ctx, "select pg_current_snapshot()::text").Scan(&seen)
	if err == nil {
		err = f.conn.QueryRow(ctx, "select pg_current_wal_insert_lsn()::text").Scan(&end)
	}
	if err != nil {
		return fmt.Errorf("relay: follow: %w", err)
	}
	s1, err := parseSnapshot(seen)
	if err != nil {
		return fmt.Errorf("relay: follow: %w", err)
	}
	if err := f.confirmed(ctx, end); err != nil {
		return err
	}
	defer f.share.leave(ctx)
	if _, err := f.share.acquire(ctx, allShards.list(), time.Minute); err != nil {
		return err
	}
	leases, err := f.share.begin(ctx)
	if err != nil {
		return err
	}
	if len(leases) < outbox.Shards {
		return fmt.Errorf("%w, and hold %d of the %d shards: nothing has to be followed while they publish; stop them if the slot's reader is to publish alone", ErrRelayRuns, outbox.Shards-len(leases), outbox.Shards)
	}
	return f.store(ctx, leases, cursor{s1: s1, low: low}, old)
}

// nothingWaits: what is held or refused was passed over by a relay, and stands
// behind no cursor.
func (f *follower) nothingWaits(ctx context.Context) error {
	var n int64
	if err := f.conn.QueryRow(ctx, f.x("select (select count(*) from @schema@.relay_held) + (select count(*) from @schema@.relay_fork)")).Scan(&n); err != nil {
		return fmt.Errorf("relay: follow: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("%w: %d held streams and refused topics; run relays until \"relay status\" shows none", ErrWaiting, n)
	}
	return nil
}

// isOurs refuses the slot of somebody who doesn't read the outbox, as far as that
// shows, and finds out whether this is the first time that it is followed: a
// shard's lease keeps its last holder's name.
func (f *follower) isOurs(ctx context.Context) error {
	var plugin string
	err := f.conn.QueryRow(ctx, f.x(`select coalesce((select plugin::text from pg_replication_slots where slot_name = $1 and slot_type = 'logical' and database = current_database()), ''),
		(select count(*) = $3 from @schema@.lease where key between 'fenceline:relay/00' and 'fenceline:relay/63' and starts_with(holder, $2))`),
		f.cfg.Slot, "slot "+f.cfg.Slot+" ", outbox.Shards).Scan(&plugin, &f.before)
	switch {
	case err != nil:
		return fmt.Errorf("relay: follow: look at the slot: %w", err)
	case plugin != "" && plugin != "pgoutput":
		return fmt.Errorf("%w: slot %q has the plugin %q and not pgoutput, so it is most likely somebody else's, and what its reader has confirmed says nothing of the outbox: name the connector's slot", ErrSlotForeign, f.cfg.Slot, plugin)
	}
	return nil
}

// takes counts what is published by the new cursor and was not by those that are
// stored. By index: what is new has a transaction id that was not over for one
// of them.
func (f *follower) takes(ctx context.Context, at cursor) error {
	var when *time.Time
	err := f.conn.QueryRow(ctx, f.x(`
		select count(*), coalesce(max(o.pos), 0), max(o.created_at) from @schema@.outbox o
		join (select unnest(shards) as shard, s1, s2, last_pos from @schema@._relay_cursor) c using (shard)
		where o.xid >= coalesce((select min(pg_snapshot_xmin(s1)) from @schema@._relay_cursor having bool_and(s1 is not null)), '0'::xid8)
		  and pg_visible_in_snapshot(o.xid, $1::text::pg_snapshot) and not coalesce(pg_visible_in_snapshot(o.xid, c.s1), false)
		  and not coalesce(o.pos <= c.last_pos and pg_visible_in_snapshot(o.xid, c.s2), false)`), at.s1.text).Scan(&f.report.Events, &f.report.Pos, &when)
	if err != nil {
		return fmt.Errorf("relay: follow: count what it takes for published: %w", err)
	}
	if when != nil {
		f.report.At = *when
	}
	f.report.Unproven = f.report.Events > 0 && !f.before
	return nil
}

// confirmed waits until the slot has confirmed the log up to end.
func (f *follower) confirmed(ctx context.Context, end string) error {
	deadline := time.Now().Add(f.wait)
	wait := patience(50*time.Millisecond, time.Second)
	for {
		is, found, err := f.ask(ctx, end)
		switch {
		case err != nil:
			return err
		case is:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%w: slot %q: %s", ErrSlotBehind, f.cfg.Slot, found)
		}
		if err := pause(ctx, wait.NextBackOff()); err != nil {
			return err
		}
	}
}

const noSlot = "there is no such logical slot of this database"

// ask looks whether the slot has confirmed the log up to end, and says what it
// has found.
func (f *follower) ask(ctx context.Context, end string) (is bool, found string, err error) {
	err = f.conn.QueryRow(ctx, `select coalesce(bool_or(confirmed_flush_lsn >= $2::pg_lsn), false),
			coalesce(min(format('it has confirmed %s, and the log ended at %s; it is %s', confirmed_flush_lsn, $2::pg_lsn, case when active then 'being read' else 'not being read' end)), $3)
		from pg_replication_slots where slot_name = $1 and slot_type = 'logical' and database = current_database()`, f.cfg.Slot, end, noSlot).Scan(&is, &found)
	if err != nil {
		err = fmt.Errorf("relay: follow: look at the slot: %w", err)
	}
	return is, found, err
}

// store stores the cursor for all shards. One that a relay has stored meanwhile
// may be further; moving it back would only have things published again, but
// for nothing.
func (f *follower) store(ctx context.Context, leases []*fencing.Lease, at cursor, old []int64) error {
	var further bool
	if err := f.conn.QueryRow(ctx, f.x("select exists (select from @schema@._relay_cursor where pg_snapshot_xmax(s1) > pg_snapshot_xmax($1::text::pg_snapshot))"), at.s1.text).Scan(&further); err != nil {
		return fmt.Errorf("relay: follow: %w", err)
	}
	if further {
		return nil
	}
	if err := f.takes(ctx, at); err != nil {
		return err
	}
	groups, err := json.Marshal([]groupRow{{allShards.list(), at.row()}})
	if err != nil {
		return fmt.Errorf("relay: follow: %w", err)
	}
	keys, epochs, tokens := make([]string, len(leases)), make([]int64, len(leases)), make([]int64, len(leases))
	for i, l := range leases {
		pos := l.Position()
		keys[i], epochs[i], tokens[i] = pos.Key, pos.Epoch, pos.Token
	}
	var pairLow int64
	var generations []int64
	if err = f.conn.QueryRow(ctx, f.sql.checkpoint, keys, epochs, tokens, string(groups), "[]", "[]", old, true).Scan(&pairLow, &generations); err != nil {
		*f.report = FollowReport{} // nothing was moved
		return fmt.Errorf("relay: follow: store the cursor: %w", err)
	}
	return nil
}
