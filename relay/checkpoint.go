package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
)

// checkpoints is the goroutine that stores the cursor: when enough was
// acknowledged, and once an interval if anything was. Windows without rows are
// not stored: the stored cursor then finds the same nothing again.
func (s *session) checkpoints() error {
	tick := time.NewTicker(s.cfg.CheckpointInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.due:
		case <-tick.C:
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

// state is one moment of the session, as it is stored.
type state struct {
	main   cursor
	acks   int
	holds  []*hold
	forks  []*fork
	joined []*fork
	stale  bool

	heldJSON, forksJSON []byte
	joinedTopics        []string
}

func (st *state) empty() bool {
	return st.acks == 0 && len(st.holds) == 0 && len(st.forks) == 0 && len(st.joined) == 0 && !st.stale
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

type forkRow struct {
	Topic  string  `json:"topic"`
	S1     string  `json:"s1"`
	Low    int64   `json:"low"`
	S2     *string `json:"s2"`
	High   *int64  `json:"high"`
	Low2   *int64  `json:"low2"`
	Last   int64   `json:"last_pos"`
	Reason string  `json:"reason"`
	Detail string  `json:"detail"`
}

// capture takes the cursor and what has to be stored with it at one moment, so
// that no cursor passes a record whose hold or fork isn't in the same
// transaction or an earlier one.
func (s *session) capture() (*state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &state{main: s.main.acked, acks: s.acks, stale: s.stale}
	held, forks := []heldRow{}, []forkRow{}
	for _, h := range s.held {
		if !h.recorded {
			st.holds = append(st.holds, h)
			held = append(held, heldRow{h.Topic, h.Key, h.Pos, h.Epoch, h.Seq, h.Reason, h.Detail})
		}
	}
	for _, f := range s.forks {
		switch {
		case f.joined && len(f.flow.pages) == 0:
			st.joined = append(st.joined, f)
			st.joinedTopics = append(st.joinedTopics, f.topic)
		case f.dirty:
			st.forks = append(st.forks, f)
			c := f.flow.acked
			row := forkRow{Topic: f.topic, S1: c.s1.text, Low: c.low, Last: c.last, Reason: f.reason, Detail: f.detail}
			row.S2, row.High, row.Low2 = c.open2()
			forks = append(forks, row)
			f.dirty = false
		}
	}
	var err error
	if st.heldJSON, err = json.Marshal(held); err == nil {
		st.forksJSON, err = json.Marshal(forks)
	}
	s.acks, s.stale = 0, false
	return st, err
}

// open2 gives the window as it is stored: null at a boundary.
func (c cursor) open2() (s2 *string, high, low2 *int64) {
	if c.boundary() {
		return nil, nil, nil
	}
	return &c.s2.text, &c.high, &c.low2
}

// checkpoint stores what there is to store. With sync it is on disk afterwards;
// without, it may be missing after a crash, which repeats what came after the
// one before: the cursor is part of the same log as the rows it speaks of.
func (s *session) checkpoint(ctx context.Context, sync bool) error {
	st, err := s.capture()
	if err != nil || st.empty() {
		return err
	}
	began := time.Now()
	c := st.main
	s2, high, low2 := c.open2()
	var pairLow int64
	err = s.writer.QueryRow(ctx, s.sql.checkpoint, s.lease.Key, s.lease.Epoch, s.lease.Token, c.s1.text, c.low, s2, high, low2, c.last,
		string(st.heldJSON), string(st.forksJSON), st.joinedTopics, sync).Scan(&pairLow)
	if err != nil {
		return fmt.Errorf("relay: store the cursor: %w", err)
	}
	s.mu.Lock()
	// The transaction that this L belongs to has committed: the next snapshot
	// is taken after it.
	s.pairLow = max(s.pairLow, pairLow)
	for _, h := range st.holds {
		h.recorded = true
	}
	for _, f := range st.joined {
		if f.joined {
			delete(s.forks, f.topic)
		} else {
			f.dirty = true // refused again while its row was being deleted
		}
	}
	s.mu.Unlock()
	if h := s.cfg.Hooks.Checkpointed; h != nil {
		h(st.acks, time.Since(began))
	}
	return nil
}

// load reads where the last session got to, whoever's it was.
func (s *session) load(ctx context.Context) error {
	conn := s.reader.conn
	if err := s.sameCluster(ctx, conn); err != nil {
		return err
	}
	at := start()
	var s1, s2 string
	err := conn.QueryRow(ctx, s.sql.loadCursor).Scan(&s1, &at.low, &s2, &at.high, &at.low2, &at.last, &s.pairLow)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // never published
	case err != nil:
		return fmt.Errorf("relay: load the cursor: %w", err)
	default:
		if at, err = at.withSnapshots(s1, s2); err != nil {
			return err
		}
	}
	s.main = flow{read: at, acked: at}

	rows, err := conn.Query(ctx, s.sql.loadHeld)
	if err == nil {
		var h HeldStream
		_, err = pgx.ForEachRow(rows, []any{&h.Topic, &h.Key, &h.Pos, &h.Epoch, &h.Seq, &h.Reason, &h.Detail, &h.Since}, func() error {
			s.held[streamKey{h.Topic, h.Key}] = &hold{HeldStream: h, recorded: true}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("relay: load held streams: %w", err)
	}
	if rows, err = conn.Query(ctx, s.sql.loadForks); err == nil {
		var f fork
		var c cursor
		_, err = pgx.ForEachRow(rows, []any{&f.topic, &s1, &c.low, &s2, &c.high, &c.low2, &c.last, &f.reason, &f.detail, &f.since}, func() error {
			at, err := c.withSnapshots(s1, s2)
			f := f
			f.flow = flow{read: at, acked: at}
			s.forks[f.topic] = &f
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("relay: load forks: %w", err)
	}
	if s.cfg.signals.loaded != nil {
		s.cfg.signals.loaded(at)
	}
	return nil
}

// sameCluster refuses transaction ids that this cluster has not given out yet:
// they came with a dump from another one. Under them, events would count as
// published that are not, and nothing would say so.
func (s *session) sameCluster(ctx context.Context, conn *pgx.Conn) error {
	var newest, next int64
	if err := conn.QueryRow(ctx, s.sql.newestXid).Scan(&newest); err != nil {
		return fmt.Errorf("relay: look at the newest transaction: %w", err)
	}
	if err := conn.QueryRow(ctx, s.sql.nextXid).Scan(&next); err != nil {
		return fmt.Errorf("relay: look at the next transaction: %w", err)
	}
	if newest < next {
		return nil
	}
	return &SettingError{"transaction id in " + s.cfg.Schema + ".outbox or relay_checkpoint", fmt.Sprintf("%d, ahead of the cluster's next one, %d", newest, next),
		fmt.Sprintf("the data came from another cluster, and events would be passed over; an operator runs select %s.history_restamp(), and everything in the outbox is published again", s.cfg.Schema)}
}

func (c cursor) withSnapshots(s1, s2 string) (_ cursor, err error) {
	if c.s1, err = parseSnapshot(s1); err == nil && s2 != "" {
		c.s2, err = parseSnapshot(s2)
	}
	return c, err
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
	case len(pg.Code) == 5 && pg.Code[:2] == "FL": // another history among them
		return true
	case pg.Code[:2] == "42", pg.Code == "3F000": // a right is missing, or the schema isn't there any more
		return true
	}
	return false
}
