package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

const (
	sweepFloorsSQL     = "select turns, at, n, busy from @schema@.sweep_floors($1, $2, $3, $4, $5)"
	sweepFloorSQL      = "select @schema@.sweep_floor($1, $2, $3, $4)"
	sweepReceiptsSQL   = "select receipts, turns, more from @schema@.sweep_receipts($1, $2, $3, $4, $5, $6, $7)"
	sweepTombstonesSQL = "select tombstones, unpublished, coalesce(unpublished_key, ''), held, coalesce(held_key, '') from @schema@.sweep_tombstones($1, $2, $3, $4, $5, $6, $7, $8)"
	sweepPlanSQL       = "select goes, what, coalesce(reason, ''), n, more, coalesce(example, ''), until from @schema@.sweep_plan($1, $2, $3, $4)"
)

// SweepConfig says how long receipts, turns and tombstones are kept. The zero
// value is usable. Keep it the same wherever sweeps run: the shortest counts.
type SweepConfig struct {
	// RetryWindow is how long a client may ask again for a commit whose answer
	// it did not get. Defaults to 24 h.
	RetryWindow time.Duration
	// Residence is the longest time that such a request can be under way before
	// it reaches the database: in a queue, a proxy, a paused process. It comes on
	// top of RetryWindow. Defaults to 24 h.
	Residence time.Duration
	// Batch is how many turns, and how many receipts, one transaction looks at:
	// 1 to 100,000. Defaults to 200.
	Batch int
	// Every is the time between two sweeps of RunSweeper. Defaults to 1 min.
	Every time.Duration
	// DryRun changes nothing, and reports what a sweep would do. It counts up to
	// 100,000 of each. Defaults to false.
	DryRun bool
	// ForeignRelay says that something else than this toolkit's relay publishes
	// the outbox, such as Debezium. Then nothing here can tell what is published,
	// and a tombstone goes by its age alone: give it more than the longest outage
	// of that relay. Defaults to false.
	ForeignRelay bool
}

const (
	planLimit = 100_000
	// floorWait is how long the sweep queues for a fence that is busy.
	floorWait = time.Second
	// sweepRow is what a turn or a receipt may take of a transaction's time, on a
	// database that is busy.
	sweepRow = 10 * time.Millisecond
)

func (c SweepConfig) withDefaults() SweepConfig {
	if c.RetryWindow == 0 {
		c.RetryWindow = 24 * time.Hour
	}
	if c.Residence == 0 {
		c.Residence = 24 * time.Hour
	}
	if c.Batch == 0 {
		c.Batch = 200
	}
	if c.Every == 0 {
		c.Every = time.Minute
	}
	return c
}

func (c SweepConfig) validate() error {
	switch {
	case c.RetryWindow < 0:
		return &InvalidError{"retry window", fmt.Sprintf("is %v, want a positive duration", c.RetryWindow)}
	case c.Residence < 0:
		return &InvalidError{"residence", fmt.Sprintf("is %v, want a positive duration", c.Residence)}
	case c.Batch < 1 || c.Batch > planLimit:
		return &InvalidError{"batch", fmt.Sprintf("is %d, want 1 to %d", c.Batch, planLimit)}
	case c.Every < 0:
		return &InvalidError{"sweep interval", fmt.Sprintf("is %v, want a positive duration", c.Every)}
	}
	return nil
}

// What a sweep removes.
const (
	SweptReceipts   = "receipts"
	SweptTombstones = "tombstones"
	SweptTurns      = "turns"
)

// Why something is kept.
const (
	// KeptNewestToken: the fence has not moved past the receipt's token. A
	// holder that never ends rotates its token, or its receipts stay. Reported
	// by a dry run only.
	KeptNewestToken = "newest token"
	// KeptRetryWindow, KeptResidence: its time is not over. Reported by a dry
	// run only.
	KeptRetryWindow = "retry window"
	KeptResidence   = "residence"
	// KeptBusy: a commit held the fence for longer than the sweep would wait.
	// The next sweep tries again.
	KeptBusy = "busy"
	// KeptUnpublished: the relay has not published the key's last events.
	KeptUnpublished = "unpublished"
	// KeptHeld: a stream of the key is held, because the broker refused a record.
	KeptHeld = "held"
)

// Kept says what a sweep left, and why.
type Kept struct {
	// What is receipts, tombstones or turns; Reason one of the constants.
	What, Reason string
	// Count is how many; of KeptBusy, how many fences.
	Count int64
	// More says that counting stopped there.
	More bool
	// Example is the key of one of them, where there is one.
	Example string
	// Until is when the first of them can go, where time decides; else zero.
	Until time.Time
}

// SweepReport says what a sweep has removed, or a dry run would.
type SweepReport struct {
	DryRun                      bool
	Receipts, Tombstones, Turns int64
	// More says that a dry run stopped counting.
	More bool
	Kept []Kept
}

// Sweep removes what nobody can ask for any more, once, and returns what it did.
//
//   - Receipts whose token the fence has moved past RetryWindow and Residence
//     ago. A retry that comes later still is answered ErrUnconfirmable, never as
//     a first commit, and never ErrStale.
//   - Tombstones of keys that were closed as long ago, that have no receipt left
//     and whose events are published. The key is then unknown; a new life has a
//     larger epoch all the same.
//   - Turns, the history of who held what, of the same age.
//
// It works through the turns in batches, each in small transactions. Commits
// wait for it at most for one statement that raises the floors of a batch of
// keys, where there are receipts to remove. Several sweeps at once share the
// work. When ctx ends, or on an error, the report says what was done before; a
// sweep can end anywhere.
//
// The login needs the role fenceline_operator.
func (f *Fences) Sweep(ctx context.Context, cfg SweepConfig) (SweepReport, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return SweepReport{}, err
	}
	s := &sweep{f: f, cfg: cfg, report: SweepReport{DryRun: cfg.DryRun}}
	var err error
	if cfg.DryRun {
		err = s.plan(ctx)
	} else {
		err = s.run(ctx)
	}
	if err != nil {
		if t := translate(err); t != err {
			return s.report, t
		}
		return s.report, fmt.Errorf("fencing: sweep: %w", err)
	}
	return s.report, nil
}

type sweep struct {
	f      *Fences
	cfg    SweepConfig
	report SweepReport
}

// mark is a place in the work list.
type mark struct {
	at time.Time
	n  int64
}

func (s *sweep) run(ctx context.Context) error {
	var from mark
	for {
		turns, to, busy, err := s.floors(ctx, from)
		if err != nil || turns == 0 {
			return err
		}
		for _, n := range busy {
			if err := s.floor(ctx, n); err != nil {
				return err
			}
		}
		for more := true; more; {
			if more, err = s.receipts(ctx, from, to); err != nil {
				return err
			}
		}
		if err := s.tombstones(ctx, from, to); err != nil {
			return err
		}
		if turns < s.cfg.Batch {
			return nil
		}
		from = to
	}
}

// call is one transaction of the sweep. A database whose host is gone answers none:
// it is waited for longer than such a transaction takes, and then the sweep ends
// with an error, as after any other that it can be begun again behind.
func (s *sweep) call(ctx context.Context, sql string, args []any, dest ...any) error {
	limit := 2*s.f.cfg.CommitTimeout + time.Duration(s.cfg.Batch)*sweepRow
	err := s.f.queryBehind(ctx, limit, []string{patientSQL}, oneRow(func(row pgx.Row) error { return row.Scan(dest...) }), schema.Expand(sql, s.f.cfg.Schema), args...)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer, or no connection, for %v: %w", limit, err)
	}
	return err
}

func (s *sweep) floors(ctx context.Context, from mark) (turns int, to mark, busy []int64, err error) {
	var at *time.Time
	var n *int64
	err = s.call(ctx, sweepFloorsSQL, []any{s.cfg.RetryWindow, s.cfg.Residence, s.cfg.Batch, from.at, from.n}, &turns, &at, &n, &busy)
	if err == nil && at != nil && n != nil {
		to = mark{*at, *n}
	}
	return turns, to, busy, err
}

func (s *sweep) floor(ctx context.Context, n int64) error {
	var raised bool
	err := s.call(ctx, sweepFloorSQL, []any{s.cfg.RetryWindow, s.cfg.Residence, n, floorWait}, &raised)
	if err == nil && !raised {
		s.keep(SweptReceipts, KeptBusy, 1, "")
	}
	return err
}

func (s *sweep) receipts(ctx context.Context, from, to mark) (more bool, err error) {
	var receipts, turns int64
	err = s.call(ctx, sweepReceiptsSQL, []any{s.cfg.RetryWindow, s.cfg.Residence, s.cfg.Batch, from.at, from.n, to.at, to.n}, &receipts, &turns, &more)
	if err == nil {
		s.report.Receipts += receipts
		s.report.Turns += turns
	}
	return more, err
}

func (s *sweep) tombstones(ctx context.Context, from, to mark) error {
	var tombstones, unpublished, held int64
	var unpublishedKey, heldKey string
	err := s.call(ctx, sweepTombstonesSQL, []any{s.cfg.RetryWindow, s.cfg.Residence, s.cfg.Batch, from.at, from.n, to.at, to.n, s.cfg.ForeignRelay},
		&tombstones, &unpublished, &unpublishedKey, &held, &heldKey)
	if err == nil {
		s.report.Tombstones += tombstones
		s.report.Turns += tombstones // each with the turn of its closing
		s.keep(SweptTombstones, KeptUnpublished, unpublished, unpublishedKey)
		s.keep(SweptTombstones, KeptHeld, held, heldKey)
	}
	return err
}

// keep adds up what is kept for the same reason.
func (s *sweep) keep(what, reason string, n int64, example string) {
	if n == 0 {
		return
	}
	for i := range s.report.Kept {
		if k := &s.report.Kept[i]; k.What == what && k.Reason == reason {
			k.Count += n
			return
		}
	}
	s.report.Kept = append(s.report.Kept, Kept{What: what, Reason: reason, Count: n, Example: example})
}

func (s *sweep) plan(ctx context.Context) error {
	return s.f.queryBehind(ctx, 0, []string{patientSQL}, func(rows pgx.Rows) error {
		var goes bool
		var k Kept
		var until *time.Time
		_, err := pgx.ForEachRow(rows, []any{&goes, &k.What, &k.Reason, &k.Count, &k.More, &k.Example, &until}, func() error {
			switch {
			case !goes:
				kept := k
				if until != nil {
					kept.Until = *until
				}
				s.report.Kept = append(s.report.Kept, kept)
				return nil
			case k.What == SweptReceipts:
				s.report.Receipts = k.Count
			case k.What == SweptTombstones:
				s.report.Tombstones = k.Count
			case k.What == SweptTurns:
				s.report.Turns = k.Count
			}
			s.report.More = s.report.More || k.More
			return nil
		})
		return err
	}, schema.Expand(sweepPlanSQL, s.f.cfg.Schema), s.cfg.RetryWindow, s.cfg.Residence, planLimit, s.cfg.ForeignRelay)
}
