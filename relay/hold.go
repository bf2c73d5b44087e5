package relay

import "time"

// HeldStream is a stream that is not published from some record on, because the
// broker refuses that record for what it is. Everything else flows.
type HeldStream struct {
	// Topic and Key name the stream.
	Topic, Key string
	// Pos, Epoch and Seq are those of the refused record: it and what follows
	// in the stream is kept.
	Pos, Epoch, Seq int64
	// Reason says in words what is wrong, Detail what the broker answered.
	Reason, Detail string
	// Since is when it was held, on the database's clock; zero while that is
	// not yet recorded.
	Since time.Time
}

const heldRemedy = "nothing is lost: the event and what follows in its stream stay in the outbox; find out why the broker refuses the record (max.message.bytes, a validation rule) and \"relay held retry\", or give the record up with \"relay held skip\""

// hold is a held stream. It counts from the moment at which it is in the map;
// the row that makes it last is written with the next checkpoint, which is
// never later than the first one whose cursor passes the record, since until
// the record is held it is not done. Guarded by the session's mutex.
type hold struct {
	HeldStream
	recorded bool

	// limit is the max.message.bytes with which the broker found the record too
	// large: a larger one would do. 0: it was refused for something else.
	limit int

	asked  int64 // the newest request that was seen
	wanted bool  // it asks for the stream to be resumed
	side   *side // what reads the stream then; see resume.go
}

// hold stops a stream at an item. Called under the mutex.
func (s *session) hold(it *item, e *RefusedError) {
	k := streamKey{it.Topic, it.Key}
	h := s.held[k]
	if h == nil {
		h = &hold{}
		s.held[k] = h
	} else if !h.stop(it) {
		return
	}
	detail := e.Reason
	if e.Err != nil {
		detail = e.Err.Error()
	}
	reason := e.Reason
	h.limit = 0
	if t := s.topics[it.Topic]; e.TooLarge && t != nil {
		h.limit = t.maxMessageBytes
		reason = withLimit(reason, h.limit)
	}
	h.HeldStream = HeldStream{Topic: it.Topic, Key: it.Key, Pos: it.Pos, Epoch: it.Epoch, Seq: it.Seq, Reason: reason, Detail: detail}
	s.log.Error("stream held: the broker refuses a record of it; its later events wait, everything else flows",
		"topic", h.Topic, "key", h.Key, "pos", h.Pos, "epoch", h.Epoch, "seq", h.Seq, "reason", h.Reason, "remedy", heldRemedy)
	if s.cfg.Hooks.Held != nil {
		s.cfg.Hooks.Held(h.HeldStream)
	}
	signal(s.due)
}

// stop says whether an item that was refused moves the place at which its
// stream is held. Called under the mutex.
func (h *hold) stop(it *item) bool {
	switch {
	case h.side == nil, h.side.stopped:
		if h.Pos <= it.Pos {
			return false
		}
	default:
		// A record of the side's, or, once that has joined, one of the main
		// flow's behind it. What of the stream stands before it in the lane goes
		// out or has gone out; what stands behind it leaves the lane.
		h.side.stopped = true
	}
	return true
}

// isHeld: the item belongs to a stream that is held at or before it. By pos, so
// that it says the same for whatever epoch later rows of the stream have. While
// the stream is being resumed, the side's own items pass, and the main flow's
// once the side has joined. Called under the mutex.
func (s *session) isHeld(it *item) bool {
	h := s.held[streamKey{it.Topic, it.Key}]
	if h == nil || it.Pos < h.Pos {
		return false
	}
	if sd := h.side; sd != nil && !sd.stopped {
		return it.page.flow != &sd.flow && !sd.joined
	}
	return true
}
