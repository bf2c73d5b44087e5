package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

// RetentionKey is the key of the lease whose holder, one of the instances, takes
// care of the outbox's partitions. The lease saves work; that nothing is dropped
// too early rests on the functions of the database.
const RetentionKey = "fenceline:relay/retention"

// keeper takes care of retention while an instance runs.
type keeper struct {
	pool      *pgxpool.Pool
	fences    *fencing.Fences
	cfg       Config
	retention RetentionConfig

	lease   *fencing.Lease
	told    bool              // Hooks.Retained was, and Hooks.RetentionLost wasn't since
	overdue map[string]string // what was last said of each partition
}

func (k *keeper) run(ctx context.Context) {
	defer func() {
		if k.lease != nil {
			_ = k.lease.Release(ctx) // else it expires
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if k.ours(ctx) {
			k.pass(ctx)
		}
		timer.Reset(k.retention.Every)
	}
}

// ours: this instance takes care of it, at least until the next pass.
func (k *keeper) ours(ctx context.Context) bool {
	if k.lease != nil && k.lease.Context().Err() == nil {
		return true
	}
	// A stop doesn't cut off an answer: what was acquired must be given back.
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var err error
	k.lease, err = k.fences.Acquire(asked, RetentionKey, fencing.LeaseConfig{TTL: max(k.cfg.LeaseTTL, 30*time.Second)})
	var held *fencing.HeldError
	switch {
	case err == nil:
		return true
	case errors.As(err, &held):
		if k.told {
			k.overdue, k.told = nil, false
			if h := k.cfg.Hooks.RetentionLost; h != nil {
				h()
			}
		}
	case ctx.Err() == nil:
		k.cfg.Logger.Warn("cannot ask for the lease of the retention, trying again", "in", k.retention.Every, "error", err)
	}
	return false
}

func (k *keeper) pass(ctx context.Context) {
	report, err := Retain(ctx, k.pool, k.cfg.Schema, k.retention)
	if ctx.Err() != nil {
		return
	}
	log := k.cfg.Logger
	if report.Rotated {
		log.Info("the next partition of the outbox has begun")
	}
	if len(report.Dropped) > 0 || report.Deleted > 0 {
		log.Info("published events have left the outbox", "partitions", report.Dropped, "events", report.Deleted, "kept_for", k.retention.Keep)
	}
	now := map[string]string{}
	for _, p := range report.Overdue {
		now[p.Name] = p.Kept
		if k.overdue[p.Name] != p.Kept && p.Kept != KeptBusy {
			log.Error("a partition of the outbox is kept beyond its time", "partition", p.Name, "reason", p.Kept, "last_event", p.Last, "bytes", p.Bytes, "remedy", overdueRemedies[p.Kept])
		}
	}
	if err != nil {
		log.Warn("the retention of the outbox failed, trying again", "in", k.retention.Every, "error", err)
	} else {
		k.overdue = now
	}
	k.told = true
	if k.cfg.Hooks.Retained != nil {
		k.cfg.Hooks.Retained(report, err)
	}
}

// overdueRemedies say what to do about a partition that can't go.
var overdueRemedies = map[string]string{
	KeptHeld:        `a held stream has events in it, and none of them is lost: "relay held list" shows it, "relay held retry" or "relay held skip" ends it`,
	KeptUnpublished: `not all of it is published: "relay status" says what waits and why`,
	KeptBusy:        `transactions that write to the outbox leave no moment for the lock: "relay status" shows one that stays open`,
}
