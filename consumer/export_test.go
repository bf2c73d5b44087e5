package consumer

import "time"

// SetIdleGrace shortens how long a handler that doesn't heed its context may
// hold its session, and gives the function that sets it back.
func SetIdleGrace(d time.Duration) (restore func()) {
	was := idleGrace
	idleGrace = d
	return func() { idleGrace = was }
}

// Defaults is a configuration with every default filled in.
func Defaults() (Config, error) {
	c := Config{Name: "x"}
	return c, c.check()
}
