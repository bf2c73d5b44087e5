package relay

import (
	"sync"
	"time"
)

// outages keeps the log readable: one line when the first partition fails, one
// when all go on, however many retries lie between. A partition that was set aside
// (see partition.go) fails until it is acknowledged, however long it is left alone
// between two tries: for the hooks the outage lasts as long, or they would be told
// of one at each try. The log has told of it, and tells no more of it than of what
// waits aside.
type outages struct {
	s *session

	mu      sync.Mutex
	failing map[any]bool // true: set aside
	since   time.Time    // of the outage
	told    time.Time    // since when something fails that isn't set aside
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
		o.failing = map[any]bool{}
	}
	if !o.inTheWay(nil) {
		o.told = began
		o.s.log.Warn("broker does not acknowledge; events wait, trying again until it does", "topic", topic, "error", err)
	}
	o.failing[who] = false
	if len(o.failing) > 1 {
		return
	}
	o.since = began
	if h := o.s.cfg.Hooks.OutageBegan; h != nil {
		h(err)
	}
}

// aside takes note that who fails is set aside, and goes on failing.
func (o *outages) aside(who any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.failing[who]; known {
		o.failing[who] = true
	}
}

// over takes note of an answer, or that none is waited for any more.
func (o *outages) over(who any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	aside, known := o.failing[who]
	if !known {
		return
	}
	delete(o.failing, who)
	if !aside && !o.inTheWay(nil) && o.s.soft.Err() == nil {
		o.s.log.Info("broker acknowledges again", "after", time.Since(o.told).Round(time.Millisecond))
	}
	if h := o.s.cfg.Hooks.OutageEnded; h != nil && len(o.failing) == 0 {
		h(time.Since(o.since))
	}
}

// left takes note that who was set aside isn't tried any more: what it had is in
// the fork of its topic, or was nothing that is sent.
func (o *outages) left(who any) {
	o.mu.Lock()
	aside := o.failing[who]
	o.mu.Unlock()
	if aside {
		o.over(who)
	}
}

// alone: nobody else fails and holds others up.
func (o *outages) alone(who any) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.failing[who]
	return known && !o.inTheWay(who)
}

// inTheWay: somebody fails who isn't set aside, but for one. Called under the mutex.
func (o *outages) inTheWay(but any) bool {
	for who, aside := range o.failing {
		if !aside && who != but {
			return true
		}
	}
	return false
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
