package relay

import (
	"sync"
	"time"
)

// outages keeps the log readable: one line when the first partition fails, one
// when all go on, however many retries lie between.
type outages struct {
	s *session

	mu      sync.Mutex
	failing map[any]struct{}
	since   time.Time
}

// failed takes note of an attempt that had no answer. The outage is as old as the
// attempt: that may have waited for its answer for a long time.
func (o *outages) failed(who any, topic string, began time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.failing[who]; known {
		return
	}
	if o.failing == nil {
		o.failing = map[any]struct{}{}
	}
	o.failing[who] = struct{}{}
	if len(o.failing) > 1 {
		return
	}
	o.since = began
	o.s.log.Warn("broker does not acknowledge; events wait, trying again until it does", "topic", topic, "error", err)
	if h := o.s.cfg.Hooks.OutageBegan; h != nil {
		h(err)
	}
}

func (o *outages) over(who any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.failing[who]; !known {
		return
	}
	delete(o.failing, who)
	if len(o.failing) > 0 {
		return
	}
	lasted := time.Since(o.since)
	if o.s.soft.Err() == nil {
		o.s.log.Info("broker acknowledges again", "after", lasted.Round(time.Millisecond))
	}
	if h := o.s.cfg.Hooks.OutageEnded; h != nil {
		h(lasted)
	}
}

// alone: nobody else fails.
func (o *outages) alone(who any) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.failing[who]
	return known && len(o.failing) == 1
}

// end ends an outage with the session.
func (o *outages) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) > 0 && o.s.cfg.Hooks.OutageEnded != nil {
		o.s.cfg.Hooks.OutageEnded(time.Since(o.since))
	}
	o.failing = nil
}
