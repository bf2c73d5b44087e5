package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
)

// side reads a held stream once more, beside the main flow, until that can have
// it back.
//
// Where the main flow stands at a boundary, with the cursor s1, everything
// visible in s1 is behind it and nothing else is: of the held stream, what is
// visible in s1 was passed by. So at a boundary the reading goroutine reads, in
// the order of the stream, a page of what is visible in s1, into the lane of the
// main flow's own rows. A page that isn't full was the last: the stream leaves
// the skip set at once, before this goroutine takes the next snapshot. What is
// visible in s1 is the side's, what isn't is the main flow's, and the lane keeps
// the one before the other. With any other moment a row could be committed
// between the two, and be nobody's.
//
// The row of relay_held goes when all that the side has read is acknowledged.
// Until then a session that begins anew reads the stream from that row's
// position on, once more, whatever its cursor says of it: rows that the main
// flow published meanwhile come a second time, none out of order.
//
// It is also why the row may be changed in a transaction of its own, not in the
// checkpoint's: with the row and a later cursor, the stream is read from the row
// on; without the row and an earlier cursor, what the side has read and that
// cursor hasn't passed is published, and comes again.
//
// Guarded by the session's mutex, except that only the reading goroutine reads.
type side struct {
	flow    flow    // of its cursors only last counts
	ahead   []place // of the rows that are not acknowledged, in order
	next    place   // where to read on
	stored  place   // as in relay_held
	asked   int64   // the request that it answers
	joined  bool    // the main flow has the stream back
	stopped bool    // a record was refused: the hold stands there now
}

// place is a row's place in its stream.
type place struct{ pos, epoch, seq int64 }

// requests looks for what operators have asked for, if anything is held.
func (s *session) requests(ctx context.Context) error {
	s.mu.Lock()
	none := len(s.held) == 0
	s.mu.Unlock()
	if none {
		return nil
	}
	rows, err := s.writer.Query(ctx, s.sql.heldRequests)
	if err != nil {
		return fmt.Errorf("relay: look for requests: %w", err)
	}
	var k streamKey
	var asked int64
	_, err = pgx.ForEachRow(rows, []any{&k.topic, &k.key, &asked}, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		// One that comes while the stream is being resumed is looked at afterwards.
		if h := s.held[k]; h != nil && h.recorded && h.side == nil && asked > h.asked {
			h.asked, h.wanted, s.look = asked, true, true
			signal(s.wake)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("relay: look for requests: %w", err)
	}
	return nil
}

// resumedAtOnce is how many held streams are read between two reads of the main flow:
// thousands can be asked for with one word.
const resumedAtOnce = 16

// resumable are the held streams of which a page can be read now. The topic must
// be in the main flow: one that has a fork joins first.
func (s *session) resumable() []*hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.look || !s.main.read.boundary() {
		return nil
	}
	var holds []*hold
	look := false
	for _, h := range s.held {
		t := s.topics[h.Topic]
		if !h.wanted && (t == nil || !t.retired) || h.side != nil && (h.side.joined || h.side.stopped) {
			continue
		}
		look = true
		if len(holds) < resumedAtOnce && h.recorded && s.reads(h) && s.room() && (h.side == nil || h.side.flow.ahead < maxAhead) {
			holds = append(holds, h)
		}
	}
	s.look = look
	return holds
}

// reads: the stream is to be resumed, and it isn't done. Called under the mutex.
func (s *session) reads(h *hold) bool {
	if h.side != nil && (h.side.joined || h.side.stopped) || s.elsewhere(h.Topic, h.Key) {
		return false
	}
	t := s.topic(h.Topic)
	return t.usable && (h.wanted || t.retired)
}

// readHeld reads a page of a held stream, and lets the main flow have the stream
// back after the last one.
func (s *session) readHeld(h *hold) (rows int, more bool, err error) {
	s.mu.Lock()
	if !s.main.read.boundary() || !s.reads(h) || !s.room() { // another one may have taken it
		s.mu.Unlock()
		return 0, false, nil
	}
	if h.side == nil {
		at := place{h.Pos, h.Epoch, h.Seq}
		h.side = &side{flow: flow{beside: true}, next: at, stored: at, asked: h.asked}
	}
	sd, s1 := h.side, s.main.read.s1
	next, topic, key := sd.next, h.Topic, h.Key
	s.mu.Unlock()

	page, full, err := s.reader.stream(s.soft, topic, key, next, s1)
	if err != nil {
		return 0, false, err
	}
	if err := s.crash("read held"); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.side != sd || !s.reads(h) {
		return 0, false, nil // refused meanwhile, the record or the topic
	}
	if n := len(page); n > 0 {
		ch := chunk{rows: page, during: sd.flow.read, after: sd.flow.read.at(page[n-1].Pos)}
		for i := range page {
			sd.ahead = append(sd.ahead, place{page[i].Pos, page[i].Epoch, page[i].Seq})
		}
		last := sd.ahead[len(sd.ahead)-1]
		sd.next = place{last.pos + 1, last.epoch, last.seq + 1}
		s.dispatch(&sd.flow, ch)
	}
	if !full {
		// Here, and under the same boundary as the page.
		sd.joined = true
		s.log.Info("held stream has caught up, and flows with the rest", "topic", h.Topic, "key", h.Key)
		if s.cfg.Hooks.Resumed != nil {
			s.cfg.Hooks.Resumed(h.HeldStream)
		}
		signal(s.due)
	}
	return len(page), full, nil
}

// stream reads a page of one stream, from a place on, as far as it is visible in
// a snapshot. In the order of (epoch, seq), which is that of pos within a
// stream, since it is the one that an index has.
func (r *reader) stream(ctx context.Context, topic, key string, from place, in snapshot) (_ []row, full bool, err error) {
	p := page{limit: r.rows, bytes: r.bytes}
	rows, err := r.query(ctx, r.sql.stream, r.rows, r.bytes, topic, key, from.epoch, from.seq, from.pos, in.text)
	if err := p.collect(rows, err, nil); err != nil {
		return nil, false, err
	}
	slices.SortFunc(p.rows, func(a, b row) int { // in practice nothing is left to sort
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq))
	})
	return p.rows, p.full(), nil
}

// unresume: the topic is refused while streams of it are being resumed. They are
// held as before, from the first record on that isn't acknowledged; that one may
// be in no other flow's care. Called under the mutex, before the topic's lanes
// are emptied, which would otherwise count as done.
func (s *session) unresume(topic string) {
	for _, h := range s.held {
		sd := h.side
		if h.Topic != topic || sd == nil || sd.joined && !sd.stopped && len(sd.flow.pages) == 0 {
			continue // in the last case there is nothing left to take care of
		}
		// Where the side is through, what stands before the refused record is the main
		// flow's, and so the fork's; and that the stream is held there may be stored.
		at, through := sd.place(), sd.joined && len(sd.flow.pages) == 0
		sd.flow.rewind()
		if !sd.stopped || at.pos < h.Pos && !through {
			h.Pos, h.Epoch, h.Seq = at.pos, at.epoch, at.seq
		}
		h.side, s.look = nil, true // the request stands
	}
}

// place is where the first row stands that isn't acknowledged, or else the end
// of what was read. Called under the mutex.
func (sd *side) place() place {
	for len(sd.ahead) > 0 && sd.ahead[0].pos <= sd.flow.acked.last {
		sd.ahead = sd.ahead[1:]
	}
	if len(sd.ahead) > 0 {
		return sd.ahead[0]
	}
	return sd.next
}

// settled is what became of a stream that was resumed, as it is stored.
type settled struct {
	h  *hold
	sd *side

	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Became string `json:"became"`
	Asked  int64  `json:"asked"`
	Pos    int64  `json:"pos"`
	Epoch  int64  `json:"epoch"`
	Seq    int64  `json:"seq"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

const (
	becameGone  = "gone"
	becameHeld  = "held"
	becameMoved = "moved"
)

// settleHeld stores what became of the streams that are being resumed. Called by
// whoever stores checkpoints, before the checkpoint.
func (s *session) settleHeld(ctx context.Context) error {
	var all []settled
	s.mu.Lock()
	for k, h := range s.held {
		sd := h.side
		if sd == nil {
			continue
		}
		at := sd.place()
		x := settled{h: h, sd: sd, Topic: k.topic, Key: k.key, Asked: sd.asked, Pos: at.pos, Epoch: at.epoch, Seq: at.seq, Reason: storable(h.Reason), Detail: storable(h.Detail)}
		switch idle := len(sd.flow.pages) == 0; {
		case idle && sd.stopped:
			x.Became, x.Pos, x.Epoch, x.Seq = becameHeld, h.Pos, h.Epoch, h.Seq
		case idle && sd.joined:
			x.Became = becameGone
		case at != sd.stored && (!sd.stopped || at.pos < h.Pos):
			x.Became = becameMoved
		default:
			continue
		}
		all = append(all, x)
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	if err := s.crash("settle held"); err != nil {
		return err
	}
	// Each under the token of its own shard.
	byLease := map[fencing.Position][]settled{}
	for _, x := range all {
		pos := s.leaseOf(x.Key)
		byLease[pos] = append(byLease[pos], x)
	}
	for pos, some := range byLease {
		text, err := json.Marshal(some)
		if err != nil {
			return err
		}
		if _, err := s.writer.Exec(ctx, s.sql.heldSettle, pos.Key, pos.Epoch, pos.Token, string(text)); err != nil {
			return fmt.Errorf("relay: store what became of held streams: %w", err)
		}
	}
	if err := s.crash("settled held"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range all {
		s.applySettled(x)
	}
	return nil
}

// applySettled takes note of what is stored. Meanwhile more may have happened.
// Called under the mutex.
func (s *session) applySettled(x settled) {
	h := x.h
	switch x.Became {
	case becameMoved:
		x.sd.stored = place{x.Pos, x.Epoch, x.Seq}
	case becameHeld:
		// Or the topic was refused meanwhile, for which the request would stand: but it is
		// answered now, and an operator may decide anew, on an event that is not on its way.
		if h.side == x.sd || h.side == nil && h.asked == x.Asked {
			h.side, h.wanted, h.Since = nil, false, time.Time{}
		}
	case becameGone:
		if !x.sd.stopped {
			delete(s.held, streamKey{x.Topic, x.Key})
			return
		}
		// A record behind the side's was refused while the row was being deleted:
		// the next checkpoint inserts it, and its requests count from 0.
		h.side, h.wanted, h.recorded, h.asked = nil, false, false, 0
		signal(s.due)
	}
}
