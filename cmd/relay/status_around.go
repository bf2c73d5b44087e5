package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/relay"
)

// What "relay status" prints beside the work itself: who does it, whether it may
// be done, what the outbox takes up, and who keeps it.

type instance struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started"`
	Expires time.Time `json:"expires"`
	Shards  []int     `json:"shards"`
}

type pauseState struct {
	Who    string    `json:"who"`
	Login  string    `json:"login"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

type outboxState struct {
	Bytes      int64             `json:"bytes"`
	Runway     int64             `json:"runway_events"`
	Partitions []outboxPartition `json:"partitions"`
}

type outboxPartition struct {
	Name   string     `json:"name"`
	Bytes  int64      `json:"bytes"`
	Active bool       `json:"active"`
	First  *time.Time `json:"first_event"`
	Last   *time.Time `json:"last_event"`
	Kept   string     `json:"kept"` // why it couldn't go now; empty if only its age keeps it
}

type blocker struct {
	PID         int     `json:"pid"`
	Prepared    string  `json:"prepared"`
	User        string  `json:"user"`
	Application string  `json:"application"`
	State       string  `json:"state"`
	Open        float64 `json:"open_seconds"`
	Text        string  `json:"text"`
}

type historyAnswer struct {
	Same bool `json:"same"`
}

// openFor is the age from which a transaction that has written to the outbox is
// worth a word.
const openFor = 10 * time.Second

func (r *statusReport) around(ctx context.Context, pool *pgxpool.Pool, name string) error {
	p, err := relay.ReadPause(ctx, pool, name)
	if err != nil {
		return err
	}
	if p.Paused {
		r.Pause = &pauseState{p.Who, p.Login, p.Reason, p.At.UTC()}
		r.ToDo = append(r.ToDo, "the relays are paused; \"relay resume\" ends it")
	}
	o, err := relay.ReadOutbox(ctx, pool, name)
	if err != nil {
		return err
	}
	r.Outbox = outboxState{o.Bytes, o.Runway, []outboxPartition{}}
	for _, q := range o.Partitions {
		r.Outbox.Partitions = append(r.Outbox.Partitions, outboxPartition{q.Name, q.Bytes, q.Active, maybe(q.First), maybe(q.Last), q.Kept})
	}
	blockers, err := relay.ReadBlockers(ctx, pool, name, openFor)
	if err != nil {
		return err
	}
	for _, b := range blockers {
		r.Blockers = append(r.Blockers, blocker{b.PID, b.GID, b.User, b.Application, b.State, b.Open.Seconds(), b.String()})
	}
	op, err := fencing.NewOperator(ctx, pool, name)
	if err != nil {
		return err
	}
	h, err := op.History(ctx)
	if err != nil {
		return err
	}
	if r.History.Same = h.Same(); !r.History.Same {
		r.ToDo = append(r.ToDo, "this database was restored, promoted or copied, and nothing is published: \"relay history show\" says more")
	}
	return nil
}

func (r statusReport) textAround(line func(string, ...any)) {
	for _, i := range r.Instances {
		line("instance %s since %s, with %s", i.Name, clock(i.Started), count(len(i.Shards), "shard"))
	}
	if n := len(r.Unowned); n > 0 && len(r.Instances) > 0 {
		line("unowned  %s: taken over within the lease time, or a moment after an instance came or went", count(n, "shard"))
	}
	if p := r.Pause; p != nil {
		line("paused   by %q, login %q, since %s%s", p.Who, p.Login, clock(p.Since), because(p.Reason))
	}
	line("outbox   %s in %s, runway %s", size(r.Outbox.Bytes), count(len(r.Outbox.Partitions), "partition"), events(r.Outbox.Runway, false))
	for _, p := range r.Outbox.Partitions {
		from, to := "", "empty"
		if p.First != nil && p.Last != nil {
			from, to = clock(*p.First), clock(*p.Last)
		}
		why := "published"
		if p.Kept != "" {
			why = p.Kept
		}
		line("  %-16s %-9s %s … %s, %s", p.Name, size(p.Bytes), from, to, why)
	}
	for _, b := range r.Blockers {
		line("open     %s", b.Text)
	}
	if !r.History.Same {
		line("history  another one")
	}
}

func size(bytes int64) string {
	for _, u := range []struct {
		n    int64
		name string
	}{{1 << 30, "GB"}, {1 << 20, "MB"}, {1 << 10, "kB"}} {
		if bytes >= u.n {
			return fmt.Sprintf("%.1f %s", float64(bytes)/float64(u.n), u.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
