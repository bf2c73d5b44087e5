package relay

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// A record that was too large is not too large for ever: once its topic takes
// larger ones, the stream is asked to be resumed, once for each such change. A
// retry is always safe; what this saves is the operator's night.
//
// What decides is the limit with which the record was refused, and it is part of
// the reason that is stored with the hold. So whoever has the stream later, after
// a restart or on another instance, knows it too, and so does the operator who
// reads the reason. It also makes the end of it: a record that is refused again is
// held again, with the limit of then.

const limitText = " (the topic's max.message.bytes was %d)"

var limitPattern = regexp.MustCompile(`\(the topic's max\.message\.bytes was (\d+)\)$`)

// withLimit adds the limit to a reason.
func withLimit(reason string, limit int) string {
	if limit <= 0 {
		return reason
	}
	return reason + fmt.Sprintf(limitText, limit)
}

// limitIn is the limit that withLimit has added, 0 if it hasn't.
func limitIn(reason string) int {
	m := limitPattern.FindStringSubmatch(reason)
	if m == nil {
		return 0
	}
	limit, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return limit
}

// described takes note of what the broker says of a topic, if it did. Called
// under the mutex.
func (t *topic) described(d Topic) {
	if d.MaxMessageBytes == 0 {
		return
	}
	t.maxMessageBytes = d.MaxMessageBytes
	// A limit that was lowered unnoticed is what refused the record; it was
	// stored with the one that was known.
	for k, h := range t.s.held {
		if k.topic == t.name {
			h.limit = min(h.limit, d.MaxMessageBytes)
		}
	}
}

// measure asks for a topic's limit again if a record that was too large is within
// the one that is known: it was lowered since. The hold is stored with the limit that
// is known then; with the one of before, the stream would not be retried when that is
// set again, unless a check had come in between and nobody has forgotten what it saw.
func (t *topic) measure(ctx context.Context, weight int) {
	t.s.mu.Lock()
	known := t.maxMessageBytes
	t.s.mu.Unlock()
	if weight >= known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if d, err := t.s.pub.Describe(ctx, t.name); err == nil {
		t.s.mu.Lock()
		t.described(d)
		t.s.mu.Unlock()
	}
}

// tryAgain asks for streams of a topic to be resumed whose record was too large
// for the limit of then, and may not be for the one of now.
func (s *session) tryAgain(ctx context.Context, t *topic) {
	why := map[string]string{}
	s.mu.Lock()
	for k, h := range s.held {
		if k.topic == t.name && h.limit > 0 && h.limit < t.maxMessageBytes && h.recorded && !h.wanted && h.side == nil {
			why[k.key] = fmt.Sprintf("max.message.bytes of the topic went from %d to %d", h.limit, t.maxMessageBytes)
		}
	}
	s.mu.Unlock()
	for key, because := range why {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		var asked bool
		err := write(ctx, s.pool, s.sql.heldAuto, []any{t.name, key, because}, &asked)
		cancel()
		if err != nil {
			s.log.Warn("could not ask for a held stream to be resumed; an operator can", "topic", t.name, "key", key, "error", err)
			return
		}
	}
}
