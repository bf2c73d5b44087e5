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

const heldRemedy = "nothing is lost: the event and what follows in its stream stay in the outbox, kept by the row of relay_held (leave it); find out why the broker refuses the record (max.message.bytes, a validation rule), so that the stream can be resumed"

// hold is a held stream. It counts from the moment at which it is in the map;
// the row that makes it last is written with the next checkpoint, which is
// never later than the first one whose cursor passes the record, since until
// the record is held it is not done.
type hold struct {
	HeldStream
	recorded bool
}

// hold stops a stream at an item. Called under the mutex.
func (s *session) hold(it *item, e *RefusedError) {
	k := streamKey{it.Topic, it.Key}
	if h := s.held[k]; h != nil && h.Pos <= it.Pos {
		return
	}
	detail := e.Reason
	if e.Err != nil {
		detail = e.Err.Error()
	}
	h := &hold{HeldStream: HeldStream{Topic: it.Topic, Key: it.Key, Pos: it.Pos, Epoch: it.Epoch, Seq: it.Seq, Reason: e.Reason, Detail: detail}}
	s.held[k] = h
	s.log.Error("stream held: the broker refuses a record of it; its later events wait, everything else flows",
		"topic", h.Topic, "key", h.Key, "pos", h.Pos, "epoch", h.Epoch, "seq", h.Seq, "reason", h.Reason, "remedy", heldRemedy)
	if s.cfg.Hooks.Held != nil {
		s.cfg.Hooks.Held(h.HeldStream)
	}
	signal(s.due)
}

// isHeld: the item belongs to a stream that is held at or before it. By pos, so
// that it says the same for whatever epoch later rows of the stream have.
// Called under the mutex.
func (s *session) isHeld(it *item) bool {
	h := s.held[streamKey{it.Topic, it.Key}]
	return h != nil && it.Pos >= h.Pos
}
