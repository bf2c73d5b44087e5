package consumer

import (
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// SetIdleGrace shortens how long a handler that doesn't heed its context may
// hold its session, and gives the function that sets it back.
func SetIdleGrace(d time.Duration) (restore func()) {
	was := idleGrace
	idleGrace = d
	return func() { idleGrace = was }
}

// SetSilence shortens how much longer than a statement may take its answer is
// waited for, and gives the function that sets it back.
func SetSilence(d time.Duration) (restore func()) {
	was := silence
	silence = d
	return func() { silence = was }
}

// CutAtOnce has a batch end with the event in hand as soon as there is a stop, and
// gives the function that sets it back.
func CutAtOnce() (restore func()) {
	was := wholeDrain
	wholeDrain = 1 << 62
	return func() { wholeDrain = was }
}

// TryLettersAgainAtOnce has a dead letter that was put aside tried again as soon as
// nothing else is left, and gives the function that sets it back.
func TryLettersAgainAtOnce() (restore func()) {
	was := asideFor
	asideFor = 0
	return func() { asideFor = was }
}

// Defaults is a configuration with every default filled in.
func Defaults() (Config, error) {
	c := Config{Name: "x"}
	return c, c.check()
}

// Passed is what an unreadable record's leaving of the park goes by.
func (r *Row) Passed(rec *outbox.Record) bool { return r.passed(rec) }
