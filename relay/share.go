package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// meetEvery is how often an instance looks at most who else is there and which
// shards are free: so long a shard that was given up lies idle.
const meetEvery = 250 * time.Millisecond

// together is how many leases are asked for, or given up, at the same time.
const together = 4

// share is an instance's share of the shards: it has itself counted among the
// instances, takes what is free while it has less than its share, and gives
// away what is above.
//
// A session works under a fixed set of leases. So what changes is collected
// here, and takes effect between two sessions: the one that runs stops reading,
// waits for its requests, stores its cursors, and only then is anything given
// away. Whoever gets it goes on from there, and nothing is published twice.
type share struct {
	pool   *pgxpool.Pool
	fences *fencing.Fences
	cfg    Config
	sql    *statements
	id     uuid.UUID
	holder string // of the leases

	// changed has room for one: the set that the next session should have is
	// another one than before.
	changed chan struct{}

	mu     sync.Mutex
	leases map[int]*fencing.Lease
	give   shardSet // to be given away when the session has ended
	err    error    // why it can't go on
	beaten time.Time
	told   bool // trouble with the database was logged
}

func newShare(pool *pgxpool.Pool, fences *fencing.Fences, cfg Config, sql *statements) *share {
	id := uuid.New()
	return &share{
		pool: pool, fences: fences, cfg: cfg, sql: sql, id: id, holder: holderOf(cfg.Name, id),
		changed: make(chan struct{}, 1), leases: map[int]*fencing.Lease{},
	}
}

// holderOf tells two instances of one name apart.
func holderOf(name string, id uuid.UUID) string { return name + " " + id.String()[:8] }

// run looks after the share until ctx ends.
func (h *share) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		soonest, err := h.round(ctx)
		switch {
		case err == nil:
			h.told = false
		case ctx.Err() != nil:
			return
		case fatal(err):
			h.mu.Lock()
			h.err = err
			h.mu.Unlock()
			signal(h.changed)
			return
		case !h.told:
			h.told = true
			h.cfg.Logger.Warn("cannot see which shards are free, trying again", "error", err)
		}
		// Not later than something can expire, so that a takeover after a crash
		// takes one lease time.
		timer.Reset(max(10*time.Millisecond, min(meetEvery, soonest)))
	}
}

// round is one look and what follows from it.
func (h *share) round(ctx context.Context) (soonest time.Duration, err error) {
	var beat *time.Duration
	if now := time.Now(); now.Sub(h.beaten) > h.cfg.LeaseTTL/3 {
		beat = &h.cfg.LeaseTTL
		h.beaten = now
	}
	asked, cancel := context.WithTimeout(ctx, max(time.Second, h.cfg.LeaseTTL/3))
	defer cancel()
	var ids []uuid.UUID
	var free []int
	var left *time.Duration
	if err := write(asked, h.pool, h.sql.meet, []any{h.id, h.cfg.Name, h.holder, beat}, &ids, &free, &left); err != nil {
		h.beaten = time.Time{}
		return meetEvery, fmt.Errorf("relay: look at the shards: %w", err)
	}
	if left == nil {
		left = new(time.Duration)
		*left = meetEvery
	}
	at, want, ok := fairShare(ids, h.id)
	if !ok { // we seem to be dead: say otherwise
		h.beaten = time.Time{}
		return 0, nil
	}
	return *left, h.balance(ctx, at, want, shardsOf(free))
}

// fairShare is how many shards an instance should have, and at which it begins to
// look for them. All who see the same instances come to numbers whose sum is that of
// the shards, and to beginnings that are as far from each other.
func fairShare(ids []uuid.UUID, own uuid.UUID) (at, want int, ok bool) {
	i := slices.Index(ids, own)
	if i < 0 {
		return 0, 0, false
	}
	want, more := outbox.Shards/len(ids), outbox.Shards%len(ids)
	at = i*want + min(i, more)
	if i < more {
		want++
	}
	return at % outbox.Shards, want, true
}

// balance gives or takes until the instance has want shards; which, see even.go.
func (h *share) balance(ctx context.Context, at, want int, free shardSet) error {
	own, gave := h.surplus(at, want)
	if gave {
		signal(h.changed)
		return nil
	}
	// What is free and ours has expired: the lease will notice.
	gained, err := h.acquire(ctx, own.pick(free, at, want-own.len()), 5*time.Second)
	if gained {
		signal(h.changed)
	}
	return err
}

// acquire takes those of the shards that nobody else takes at the same moment, as
// many as it has begun with within a time.
//
// Nothing cuts off an answer but a time of its own, neither a stop nor that of all:
// what was acquired must be known, or it is nobody's until it expires.
func (h *share) acquire(ctx context.Context, shards []int, within time.Duration) (gained bool, err error) {
	beginning, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var all sync.WaitGroup
	slots := make(chan struct{}, together)
	for _, n := range shards {
		select {
		case slots <- struct{}{}:
		case <-beginning.Done():
		}
		if beginning.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
			defer cancel()
			lease, e := h.fences.Acquire(ctx, ShardKey(n), fencing.LeaseConfig{TTL: h.cfg.LeaseTTL, Holder: h.holder, Wait: time.Second})
			h.mu.Lock()
			defer h.mu.Unlock()
			switch {
			case e == nil:
				h.leases[n] = lease
				gained = true
			case !errors.Is(e, fencing.ErrHeld) && !errors.Is(e, fencing.ErrBlocked):
				err = fmt.Errorf("relay: %w", e)
			}
		})
	}
	all.Wait()
	return gained, err
}

// surplus forgets what was lost, and marks what is above want to be given away.
func (h *share) surplus(at, want int) (own shardSet, gave bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, l := range h.leases {
		switch {
		case l.Context().Err() == nil:
			own = own.with(n)
		case !h.give.has(n):
			delete(h.leases, n)
		}
	}
	for kept := own &^ h.give; kept.len() > want; gave = true {
		spare := shardSet(0).with(kept.spare(at))
		kept &^= spare
		h.give |= spare
	}
	return own, gave
}

// begin gives the leases for the next session, nil if there are none now. What
// was marked is given away before.
func (h *share) begin(ctx context.Context) ([]*fencing.Lease, error) {
	h.release(ctx, func() {})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	select {
	case <-h.changed: // what it said is in what we give
	default:
	}
	var leases []*fencing.Lease
	for n, l := range h.leases {
		if l.Context().Err() != nil {
			delete(h.leases, n)
			continue
		}
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b *fencing.Lease) int { return cmp.Compare(a.Position().Key, b.Position().Key) })
	return leases, nil
}

// lose drops a lease of which the database says that it is another's.
func (h *share) lose(ctx context.Context, key string) {
	h.mu.Lock()
	for n, l := range h.leases {
		if key == "" || l.Position().Key == key {
			h.give = h.give.with(n)
		}
	}
	h.mu.Unlock()
	h.release(ctx, func() {})
}

// release gives away what is marked; unanswered is called when the database doesn't
// answer.
func (h *share) release(ctx context.Context, unanswered func()) {
	h.mu.Lock()
	var leases []*fencing.Lease
	for _, n := range h.give.list() {
		if l := h.leases[n]; l != nil {
			leases = append(leases, l)
			delete(h.leases, n)
		}
	}
	h.give = 0
	h.mu.Unlock()
	h.releaseAll(ctx, leases, unanswered)
}

// releaseAll begins none any more when ctx has ended. Each has a time of its own,
// which ctx does not cut: where the database doesn't answer, a stop would wait for
// the sum of them.
func (h *share) releaseAll(ctx context.Context, leases []*fencing.Lease, unanswered func()) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, together)
	for i, l := range leases {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			h.keep(leases[i:])
			return
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := l.Release(ctx); err != nil {
				if errors.Is(err, context.DeadlineExceeded) {
					unanswered()
				}
				h.cfg.Logger.Warn("could not give a shard up; another instance takes it over when its lease expires", "shard", l.Position().Key, "error", err)
			}
		})
	}
}

// keep takes back leases that were not given up yet: leave is still to come.
func (h *share) keep(leases []*fencing.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range leases {
		if n, ok := shardOf(l.Position().Key); ok {
			h.leases[n], h.give = l, h.give.with(n)
		}
	}
}

// leave gives everything up. It works when ctx has ended, too. Where the database
// doesn't answer it takes some seconds; where it is far away, it goes on as long as
// it is answered, or others had to wait for the leases to expire.
func (h *share) leave(ctx context.Context) {
	h.mu.Lock()
	for n := range h.leases {
		h.give = h.give.with(n)
	}
	h.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	asked, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// First this: who sees a free shard should also see that there is one less
	// to share with.
	if err := write(asked, h.pool, h.sql.leave, []any{h.id}, nil); err != nil {
		h.cfg.Logger.Warn("could not sign off; the other instances count this one until its time is over", "error", err)
	}
	giving, stop := context.WithTimeout(ctx, max(5*time.Second, h.cfg.LeaseTTL))
	defer stop()
	h.release(giving, stop)
	if h.give != 0 {
		h.cfg.Logger.Warn("could not give all shards up; other instances take them over when their leases expire", "shards", h.give.len(), "error", context.Cause(giving))
	}
}
