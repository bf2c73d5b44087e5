package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
)

// checkpoints is the goroutine that stores the cursors: when enough was
// acknowledged, and once an interval if anything was. Windows without rows are
// not stored: the stored cursor then finds the same nothing again.
func (s *session) checkpoints() error {
	tick := time.NewTicker(s.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.due:
		case <-tick.C:
			quick := s.whileStoring()
			err := s.requests(s.hard)
			quick()
			if err != nil {
				if s.hard.Err() != nil {
					return nil
				}
				return err
			}
		case <-s.soft.Done():
			return nil
		}
		if err := s.crash("checkpoint"); err != nil {
			return err
		}
		if err := s.checkpoint(s.hard, false); err != nil {
			if s.hard.Err() != nil {
				return nil
			}
			return err
		}
		if err := s.crash("checkpointed"); err != nil {
			return err
		}
	}
}

// storingTakesLong is when it is said that a checkpoint does.
const storingTakesLong = 30 * time.Second

// whileStoring has it said if what follows takes long, until quick is called. It is
// waited for without a bound, since nothing else would be stored by ending it: a
// lock that somebody holds, or a disk, has to be seen by somebody.
func (s *session) whileStoring() (quick func()) {
	long := cmp.Or(s.cfg.signals.slow, storingTakesLong)
	began := time.Now()
	timer := time.AfterFunc(long, func() {
		s.log.Warn("storing the cursors takes long; events are published meanwhile, and again after a crash", "for", long,
			"remedy", "look for what its session in pg_stat_activity (application fenceline relay checkpoint) waits for")
	})
	return func() {
		if !timer.Stop() {
			s.log.Info("what took long to be stored is, or the session has ended", "after", time.Since(began).Round(time.Millisecond))
		}
	}
}

// state is one moment of the session, as it is stored.
type state struct {
	acks   int
	holds  []*hold
	forks  []*fork
	joined []*fork
	stale  bool // or moved

	groupsJSON, heldJSON, forksJSON []byte
	old                             []int64 // generations that are superseded
}

func (st *state) empty() bool {
	return st.acks == 0 && len(st.holds) == 0 && len(st.forks) == 0 && len(st.joined) == 0 && !st.stale
}

// groupRow are shards that stand at one place.
type groupRow struct {
	Shards []int `json:"shards"`
	cursorRow
}

type heldRow struct {
	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Pos    int64  `json:"pos"`
	Epoch  int64  `json:"epoch"`
	Seq    int64  `json:"seq"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

type cursorRow struct {
	S1   *string `json:"s1"` // null: the fork has joined
	Low  int64   `json:"low"`
	S2   *string `json:"s2"` // null at a boundary
	High *int64  `json:"high"`
	Low2 *int64  `json:"low2"`
	Last int64   `json:"last_pos"`
}

func (c cursor) row() cursorRow {
	r := cursorRow{S1: &c.s1.text, Low: c.low, Last: c.last}
	if !c.boundary() {
		r.S2, r.High, r.Low2 = &c.s2.text, &c.high, &c.low2
	}
	return r
}

type forkRow struct {
	Topic      string `json:"topic"`
	Partition  *int   `json:"partition"`
	Partitions *int   `json:"partitions"`
	Shards     []int  `json:"shards"`
	cursorRow
	Reason string     `json:"reason"`
	Detail string     `json:"detail"`
	Since  *time.Time `json:"since"`
}

func (f *fork) row() forkRow {
	r := forkRow{Topic: f.topic, Shards: f.flow.shards.list(), Reason: storable(f.reason), Detail: storable(f.detail)}
	if f.partition >= 0 {
		r.Partition, r.Partitions = &f.partition, &f.partitions
	}
	if !f.since.IsZero() {
		r.Since = &f.since
	}
	return r
}

// capture takes the cursors and what has to be stored with them at one moment,
// so that no cursor passes a record whose hold or fork isn't in the same
// transaction or an earlier one.
func (s *session) capture() (*state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Shards that have caught up are stored with the main flow's once that has
	// got as far itself.
	s.forks = slices.DeleteFunc(s.forks, func(f *fork) bool {
		over := f.topic == "" && f.over()
		s.moved = s.moved || over
		return over
	})
	st := &state{acks: s.acks, stale: s.stale || s.moved}
	due := slices.DeleteFunc(slices.Clone(s.forks), func(f *fork) bool { return !f.dirty && !f.over() })
	var groups []groupRow
	rest := s.shards
	forks := []forkRow{}
	for _, f := range s.forks {
		switch {
		case f.topic == "":
			rest &^= f.flow.shards
			groups = append(groups, groupRow{f.flow.shards.list(), f.flow.acked.row()})
		case f.over():
			st.joined = append(st.joined, f)
			forks = append(forks, f.row())
		case slices.ContainsFunc(due, f.sameRow): // itself, or one whose row takes this one's away
			st.forks = append(st.forks, f)
			row := f.row()
			row.cursorRow = f.flow.acked.row()
			forks = append(forks, row)
			f.dirty = false
		}
	}
	groups = append(groups, groupRow{rest.list(), s.main.acked.row()})
	held := []heldRow{}
	for _, h := range s.held {
		if !h.recorded {
			st.holds = append(st.holds, h)
			held = append(held, heldRow{h.Topic, h.Key, h.Pos, h.Epoch, h.Seq, storable(h.Reason), storable(h.Detail)})
		}
	}
	st.old = slices.Concat(s.stored[min(keptGenerations, len(s.stored)):]...)
	var err error
	if st.groupsJSON, err = json.Marshal(groups); err == nil {
		if st.heldJSON, err = json.Marshal(held); err == nil {
			st.forksJSON, err = json.Marshal(forks)
		}
	}
	s.acks, s.stale, s.moved = 0, false, false
	if !st.empty() {
		s.told, s.toldAt = s.high, time.Now()
	}
	return st, err
}

// keptGenerations are left behind the newest, for whoever wonders what happened.
const keptGenerations = 2

// checkpoint stores what there is to store. With sync it is on disk afterwards;
// without, it may be missing after a crash, which repeats what came after the
// one before: the cursor is part of the same log as the rows it speaks of.
func (s *session) checkpoint(ctx context.Context, sync bool) error {
	defer s.whileStoring()()
	if err := s.settleHeld(ctx); err != nil {
		return err
	}
	st, err := s.capture()
	if err != nil || st.empty() {
		return err
	}
	began := time.Now()
	keys, epochs, tokens := make([]string, len(s.own)), make([]int64, len(s.own)), make([]int64, len(s.own))
	for i, pos := range s.own {
		keys[i], epochs[i], tokens[i] = pos.Key, pos.Epoch, pos.Token
	}
	var pairLow int64
	var generations []int64
	err = s.writer.QueryRow(ctx, s.sql.checkpoint, keys, epochs, tokens, string(st.groupsJSON), string(st.forksJSON), string(st.heldJSON), st.old, sync).Scan(&pairLow, &generations)
	if err != nil {
		return fmt.Errorf("relay: store the cursor: %w", err)
	}
	s.mu.Lock()
	s.stored = append([][]int64{generations}, s.stored[:min(keptGenerations, len(s.stored))]...)
	// The transaction that this L belongs to has committed: the next snapshot
	// is taken after it.
	s.bound, s.storedLow = s.bound.better(bound{low: pairLow}), max(s.storedLow, pairLow)
	for _, h := range st.holds {
		h.recorded = true
	}
	s.forks = slices.DeleteFunc(s.forks, func(f *fork) bool {
		if !slices.Contains(st.joined, f) {
			return false
		}
		if !f.joined {
			f.dirty = true // refused again while its row was being deleted
		}
		return f.joined
	})
	for _, f := range st.joined {
		if f.joined {
			s.leave(f)
		}
	}
	s.mu.Unlock()
	if h := s.cfg.Hooks.Checkpointed; h != nil {
		h(st.acks, time.Since(began))
	}
	return nil
}

// fatal: trying again can't help, an operator has to do something.
func fatal(err error) bool {
	var pooler *PoolerError
	var setting *SettingError
	if errors.As(err, &pooler) || errors.As(err, &setting) || errors.Is(err, ErrFenced) || errors.Is(err, fencing.ErrHistory) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch {
	case pg.Code == "FL003": // another instance holds the lease
		return false
	case strings.HasPrefix(pg.Code, "FL"): // another history among them
		return true
	case strings.HasPrefix(pg.Code, "42"), pg.Code == "3F000": // a right is missing, or the schema isn't there any more
		return true
	}
	return false
}

// named has an error match fencing.ErrHistory if it says the same, and name the
// remedy: whoever supervises a relay asks for that, whichever statement was the
// first to be refused.
func named(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "FL006" || errors.Is(err, fencing.ErrHistory) {
		return err
	}
	return &historyError{err, pg.Hint}
}

// historyError says what to do, which the driver's text leaves out.
type historyError struct {
	error
	remedy string
}

// Error names what to do.
func (e *historyError) Error() string { return e.error.Error() + ": " + e.remedy }

// Unwrap gives the database's error and fencing.ErrHistory.
func (e *historyError) Unwrap() []error { return []error{e.error, fencing.ErrHistory} }
