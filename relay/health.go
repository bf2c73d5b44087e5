package relay

import (
	"fmt"
	"sync"
	"time"
)

// Health is how an instance is, for those who supervise it. Make one, give it to
// Config.Health, and ask it; the zero value is usable, and one is for one call
// of [Run].
type Health struct {
	mu      sync.Mutex
	started bool
	ended   bool
	reading time.Time // since when a look into the outbox is under way
	notes   map[string]string
}

// Stuck returns an error if one look into the outbox takes longer than limit: its
// connection hangs, and nothing but a new one helps. Waiting is not being stuck:
// for a turn, for Kafka, for an operator's resume. A minute is a good limit.
func (h *Health) Stuck(limit time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if took := time.Since(h.reading); !h.reading.IsZero() && took > limit {
		return fmt.Errorf("relay: a look into the outbox has been under way for %v", took.Round(time.Second))
	}
	return nil
}

// Started says that Run has found database and schema to be as they must be,
// and has not ended.
func (h *Health) Started() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.started && !h.ended
}

// Notes are sentences about what an operator should know: it is paused, it does
// not hear wake-ups.
func (h *Health) Notes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var notes []string
	for _, about := range []string{"pause", "wake-up"} {
		if n := h.notes[about]; n != "" {
			notes = append(notes, n)
		}
	}
	return notes
}

// The relay's side. A nil Health takes everything.

func (h *Health) start() { h.set(func() { h.started = true }) }
func (h *Health) end()   { h.set(func() { h.ended = true }) }
func (h *Health) look()  { h.set(func() { h.reading = time.Now() }) }
func (h *Health) rest()  { h.set(func() { h.reading = time.Time{} }) }

func (h *Health) note(about, text string) {
	h.set(func() {
		if h.notes == nil {
			h.notes = map[string]string{}
		}
		h.notes[about] = text
	})
}

func (h *Health) set(f func()) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}
