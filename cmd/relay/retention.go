package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/relay"
)

// keeping adds the settings of the retention. zero says what a Keep of 0 means.
func keeping(s *config.Set, cfg *relay.RetentionConfig, rotateMB *int, least time.Duration, zero string) {
	s.Duration(&cfg.Keep, "retention", "RETENTION", 7*24*time.Hour, least, 10*365*24*time.Hour, "how long published events stay in the outbox, where they can be published again"+zero)
	s.Duration(&cfg.RotateAge, "rotate-age", "ROTATE_AGE", 24*time.Hour, time.Minute, 365*24*time.Hour, "age of the oldest event of a partition of the outbox at which the next one begins; a partition is removed as a whole")
	s.Int(rotateMB, "rotate-mb", "ROTATE_MB", 10240, 1, 1<<30, "size in MiB, with indexes, at which the next partition begins before that")
	s.Duration(&cfg.LockTimeout, "retention-lock-timeout", "RETENTION_LOCK_TIMEOUT", 50*time.Millisecond, time.Millisecond, 10*time.Second, "how long one try to remove a partition waits for the lock, and commits behind it")
}

func retention(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o        operation
		cfg      relay.RetentionConfig
		rotateMB int
		follow   relay.FollowConfig
	)
	s := config.New("relay retention", "Makes one pass of the outbox's retention, as a relay that runs does every minute: begins the next partition if it is time, and removes those of which everything is published and old enough. "+
		"Nothing that is not published, and nothing of a held stream, is ever removed. It can be run at any time; a login with the role <schema>_operator or <schema>_relay is enough.")
	o.postgres.Register(s)
	keeping(s, &cfg, &rotateMB, time.Second, "")
	s.String(&follow.Slot, "slot", "SLOT", "", "where no relay publishes but the reader of a logical replication slot, such as Debezium: that slot. What it has confirmed counts as published; the login needs the role <schema>_relay")
	s.Duration(&follow.Wait, "slot-wait", "SLOT_WAIT", time.Minute, time.Second, time.Hour, "how long to wait until the slot has confirmed what is committed now")
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	cfg.RotateBytes = int64(rotateMB) << 20
	pool, err := o.postgres.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	var followed *followedSlot
	if follow.Slot != "" {
		follow.Schema, follow.AllowUnsafeDatabase, follow.Logger = o.postgres.Schema, true, slog.New(slog.DiscardHandler)
		took, err := relay.Follow(ctx, pool, follow)
		if err != nil {
			return config.NeedsRole(err, o.postgres.Schema, schema.KindRelay)
		}
		followed = &followedSlot{follow.Slot, took.Events, took.Pos, maybe(took.At), took.Unproven}
	}
	report, err := relay.Retain(ctx, pool, o.postgres.Schema, cfg)
	if err != nil {
		return config.NeedsRole(err, o.postgres.Schema, schema.KindOperator)
	}
	r := retentionReport{Followed: followed, Rotated: report.Rotated, Dropped: report.Dropped, Deleted: report.Deleted, Overdue: []overduePartition{}}
	if r.Dropped == nil {
		r.Dropped = []string{}
	}
	for _, p := range report.Overdue {
		r.Overdue = append(r.Overdue, overduePartition{p.Name, p.Kept, p.Bytes, p.Last.UTC(), overdueMeanings[p.Kept]})
	}
	return o.print(stdout, r)
}

// retentionReport is what "relay retention" prints. Its JSON names are relied
// on by scripts: add some, change none.
type retentionReport struct {
	Rotated bool               `json:"rotated"`
	Dropped []string           `json:"dropped_partitions"`
	Deleted int64              `json:"deleted_events"`
	Overdue []overduePartition `json:"overdue"`
	// Followed is what a slot has said; null without -slot.
	Followed *followedSlot `json:"followed"`
}

type followedSlot struct {
	Slot   string     `json:"slot"`
	Events int64      `json:"events"`      // taken for published, which were not before
	Pos    int64      `json:"last_pos"`    // of the newest of them
	At     *time.Time `json:"last_event"`  // likewise; null if there are none
	Before bool       `json:"before_slot"` // some may be from before the slot was made
}

func (f *followedSlot) text() string {
	if f.Events == 0 {
		return fmt.Sprintf("followed  slot %q: nothing more to take for published\n", f.Slot)
	}
	s := fmt.Sprintf("followed  slot %q: %s taken for published, up to pos %d of %s\n", f.Slot, events(f.Events, false), f.Pos, clock(*f.At))
	if f.Before {
		s += "warning   this slot was not followed before, and a slot says nothing of what was committed before it was made. If it is younger than some of these events, see that\n" +
			"          its reader has published them by a snapshot, or the relays have: \"relay verify\" shows what is missing in Kafka. Else publish them again, with \"relay republish\"\n"
	}
	return s
}

type overduePartition struct {
	Name   string    `json:"partition"`
	Reason string    `json:"reason"`
	Bytes  int64     `json:"bytes"`
	Last   time.Time `json:"last_event"`
	ToDo   string    `json:"to_do"`
}

var overdueMeanings = map[string]string{
	relay.KeptHeld:        "events of a held stream are in it: \"relay held list\" shows it, \"relay held retry\" or \"relay held skip\" ends it",
	relay.KeptUnpublished: "not all of it is published: \"relay status\" says what waits and why",
	relay.KeptBusy:        "transactions that write to the outbox left no moment for the lock: the next pass tries again; \"relay status\" shows one that stays open",
}

func (r retentionReport) text() string {
	var b strings.Builder
	if r.Followed != nil {
		b.WriteString(r.Followed.text())
	}
	if r.Rotated {
		b.WriteString("rotated   the next partition has begun\n")
	}
	switch {
	case len(r.Dropped) > 0:
		fmt.Fprintf(&b, "removed   %s\n", strings.Join(r.Dropped, ", "))
	case r.Deleted > 0:
		fmt.Fprintf(&b, "removed   %s\n", events(r.Deleted, false))
	default:
		b.WriteString("removed   nothing\n")
	}
	for _, p := range r.Overdue {
		fmt.Fprintf(&b, "kept      %s (%d MB, last event %s), though it is old enough: %s\n", p.Name, p.Bytes>>20, clock(p.Last), p.ToDo)
	}
	return b.String()
}
