package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fenceline/fenceline/internal/schema"
)

// Config is how [Run] consumes. Only Name is required.
type Config struct {
	// Name is the consumer, as its guards and offsets know it. Another name
	// means another memory: nothing was applied yet. It is usually that of the
	// consumer group. Required.
	Name string
	// Schema is where the consumer's part of the migrations was installed.
	// Defaults to "fenceline".
	Schema string
	// Policy holds for every stream that Streams doesn't name. Defaults to
	// [Strict], which can be slow to go on but never leaves an event out.
	Policy Policy
	// Start holds for every stream that Streams doesn't name. Defaults to
	// [FromFirstSeen].
	Start Start
	// Streams are exceptions, by the name of the stream (the topic that its
	// events were appended to). Defaults to none.
	Streams map[string]StreamConfig

	// BatchSize is the largest number of events in one transaction. Defaults
	// to 500.
	BatchSize int
	// FetchBytes is about how much is read of a partition at once, and so,
	// times the number of partitions, how much memory is used. One record
	// batch is read whatever its size. Defaults to 1 MiB.
	FetchBytes int

	// Attempts is how often an event is tried, on errors that are not passing
	// for certain, before it is parked (strict) or dead-lettered (state).
	// Defaults to 10, which with the pauses between them takes about four seconds.
	Attempts int
	// HandlerTimeout ends the context of a handler's call. A handler that
	// exceeds it has failed. Defaults to 30 s.
	HandlerTimeout time.Duration
	// CommitTimeout bounds a COMMIT, which nothing else cancels. Defaults to
	// 30 s.
	CommitTimeout time.Duration
	// DrainTimeout is how long a batch that is being applied may go on after
	// the stop, or the end of a generation. What doesn't finish is rolled back.
	// Keep it below the group's rebalance timeout. Defaults to 15 s.
	DrainTimeout time.Duration
	// RetryMin and RetryMax are the shortest and the longest pause between two
	// tries, whatever is tried. Default to 50 ms and 5 s.
	RetryMin, RetryMax time.Duration
	// OffsetInterval is the time between two commits of offsets to Kafka; they
	// only shorten what is read again after a restart. Defaults to 500 ms.
	OffsetInterval time.Duration
	// MaxAhead is how far an epoch may lie ahead of the database's clock before
	// it is not believed. Defaults to 24 h.
	MaxAhead time.Duration

	// Observer is told what happens. Defaults to none.
	Observer Observer
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// StreamConfig is what is different for one stream. What is empty is taken
// from [Config].
type StreamConfig struct {
	// Policy is the stream's. Defaults to Config.Policy.
	Policy Policy
	// Start is the stream's. Defaults to Config.Start.
	Start Start
}

// maxName is what the tables allow.
const maxName = 200

// check fills the defaults in and reports everything that is wrong at once.
func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("consumer: "+format, args...))
	}
	switch {
	case c.Name == "":
		bad("no name: set Config.Name, and never change it: guards and offsets are kept under it")
	case len(c.Name) > maxName || !utf8.ValidString(c.Name) || strings.ContainsRune(c.Name, 0):
		bad("Config.Name %.40q must be UTF-8 without a zero byte, at most %d bytes", c.Name, maxName)
	}
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	if err := schema.Validate(c.Schema); err != nil {
		errs = append(errs, fmt.Errorf("consumer: Config.Schema: %w", err))
	}
	if c.Policy == "" {
		c.Policy = Strict
	}
	if c.Start == "" {
		c.Start = FromFirstSeen
	}
	checkStream := func(where string, s StreamConfig) {
		if s.Policy != Strict && s.Policy != State {
			bad("%s policy %q is unknown: want %q or %q", where, s.Policy, Strict, State)
		}
		if s.Start != FromFirstSeen && s.Start != FromOrigin {
			bad("%s start %q is unknown: want %q or %q", where, s.Start, FromFirstSeen, FromOrigin)
		}
	}
	checkStream("Config's", StreamConfig{c.Policy, c.Start})
	for name := range c.Streams {
		if name == "" {
			bad("Config.Streams has an empty stream name")
		}
		checkStream(fmt.Sprintf("stream %q:", name), c.stream(name))
	}
	for _, n := range []struct {
		name     string
		value    *int
		def, min int
	}{
		{"BatchSize", &c.BatchSize, 500, 1},
		{"FetchBytes", &c.FetchBytes, 1 << 20, 1 << 10},
		{"Attempts", &c.Attempts, 10, 1},
	} {
		if *n.value == 0 {
			*n.value = n.def
		}
		if *n.value < n.min {
			bad("Config.%s is %d, want at least %d", n.name, *n.value, n.min)
		}
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"HandlerTimeout", &c.HandlerTimeout, 30 * time.Second},
		{"CommitTimeout", &c.CommitTimeout, 30 * time.Second},
		{"DrainTimeout", &c.DrainTimeout, 15 * time.Second},
		{"RetryMin", &c.RetryMin, 50 * time.Millisecond},
		{"RetryMax", &c.RetryMax, 5 * time.Second},
		{"OffsetInterval", &c.OffsetInterval, 500 * time.Millisecond},
		{"MaxAhead", &c.MaxAhead, 24 * time.Hour},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 0 {
			bad("Config.%s is %v, want more than zero", d.name, *d.value)
		}
	}
	if c.RetryMax < c.RetryMin {
		bad("Config.RetryMax (%v) is less than RetryMin (%v)", c.RetryMax, c.RetryMin)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}

// stream is the configuration of one stream with nothing left empty.
func (c *Config) stream(name string) StreamConfig {
	s := c.Streams[name]
	if s.Policy == "" {
		s.Policy = c.Policy
	}
	if s.Start == "" {
		s.Start = c.Start
	}
	return s
}

// guard is the part of the configuration that decides.
func (c *Config) guard() GuardConfig {
	return GuardConfig{Consumer: c.Name, Schema: c.Schema, Policy: c.Policy, Start: c.Start, Streams: c.Streams, MaxAhead: c.MaxAhead}
}

// any tells whether some stream may be of this kind.
func (c *Config) any(is func(StreamConfig) bool) bool {
	if is(StreamConfig{c.Policy, c.Start}) {
		return true
	}
	for name := range c.Streams {
		if is(c.stream(name)) {
			return true
		}
	}
	return false
}
