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

	// Limits bound what is kept of records that can't be applied yet. Beyond them
	// reading goes on, and comes back when there is room. What is zero defaults as
	// said at [Limits].
	Limits Limits
	// GapAlarm is how long a stream may stand (at a hole, at a life that nothing
	// proves, at an event that fails, at a contradiction) before the alarm is
	// raised, for every stream that Streams doesn't name. Defaults to 15 minutes.
	GapAlarm time.Duration
	// ForgetAfter is how long the guard of a life that has ended is kept: one that
	// stands on its end record and of which nothing waits. An event of such a life
	// that arrives later is put into quarantine, and so is the first event that
	// comes of a key that is older. Defaults to 0, for ever.
	ForgetAfter time.Duration
	// DeadLetters is given the dead letters of state streams, beside the table,
	// for a topic of their own; see [DeadLetterSink]. Defaults to none.
	DeadLetters DeadLetterSink
	// PollInterval is the time between two looks at what operators have decided,
	// at streams that stand for too long, and at whether there is room again.
	// Defaults to 5 s.
	PollInterval time.Duration

	// BatchSize is the largest number of events in one transaction. Defaults
	// to 500.
	BatchSize int
	// FetchBytes is about how much is read of a partition at once. While one
	// such piece is applied the next one is fetched. One record batch is read
	// whatever its size. Defaults to 1 MiB.
	FetchBytes int
	// FetchMaxBytes is about how much is read of all partitions at once that this
	// member has. Where FetchBytes of each would be more, each gets an even part of
	// this, and 16 KiB at least. With the next pieces, which are fetched meanwhile,
	// twice this is in memory, as Kafka has it. Defaults to 64 MiB.
	FetchMaxBytes int
	// Begin is where to begin in a partition of which neither this consumer's
	// database nor the group has an offset. Defaults to [Earliest].
	Begin Begin
	// Mapping reads records that are not in this project's wire format; see
	// [CloudEvents] and [Debezium]. It must not be changed under a consumer that
	// has something parked. Defaults to [Wire].
	Mapping Mapping

	// Attempts is how often an event is tried, on errors that are not passing
	// for certain, before it is parked (strict) or dead-lettered (state).
	// Defaults to 10, which with the pauses between them takes about four seconds.
	Attempts int
	// LossLimit is how often in a row an event may lose the connection in the
	// middle of its transaction, while new connections work, before it is
	// parked or dead-lettered like one that fails for good. Losing it once or
	// twice is an accident, and an outage never counts. Defaults to 20, which
	// with the pauses between the tries takes more than a minute.
	LossLimit int
	// HandlerTimeout ends the context of a handler's call. A handler that
	// exceeds it has failed. One that goes on regardless loses its session 5 s
	// later, so that it holds up nobody but itself. Defaults to 30 s.
	HandlerTimeout time.Duration
	// CommitTimeout bounds what ends a transaction (the guards, the offset and
	// COMMIT, which go together), and which nothing else cancels. It begins when
	// the handlers are done. Defaults to 30 s.
	CommitTimeout time.Duration
	// DrainTimeout is how long a batch that is being applied may go on after
	// the stop, or the end of a generation. When half of it is over, the batch
	// ends with the event in hand, and what was applied is committed. What doesn't
	// finish is rolled back.
	// Keep it below the group's rebalance timeout. Defaults to 15 s.
	DrainTimeout time.Duration
	// RetryMin and RetryMax are the shortest and the longest pause between two
	// tries, whatever is tried. Default to 50 ms and 5 s.
	RetryMin, RetryMax time.Duration
	// OffsetInterval is the time between two commits of offsets to Kafka; they
	// only shorten what is read again after a restart. Defaults to 500 ms.
	OffsetInterval time.Duration
	// StallAlarm is how long a partition may fail to get on, for a reason that
	// may pass, before the alarm [Stalled] is raised. Defaults to one minute.
	StallAlarm time.Duration
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
	// GapAlarm is the stream's. Defaults to Config.GapAlarm.
	GapAlarm time.Duration
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
	if c.Begin == "" {
		c.Begin = Earliest
	}
	if c.Begin != Earliest && c.Begin != Latest {
		bad("Config.Begin %q is unknown: want %q or %q", c.Begin, Earliest, Latest)
	}
	if c.Mapping == nil {
		c.Mapping = Wire
	}
	errs = append(errs, c.Mapping.check(), c.checkOffsets())
	checkStream := func(where string, s StreamConfig) {
		if s.Policy != Strict && s.Policy != State {
			bad("%s policy %q is unknown: want %q or %q", where, s.Policy, Strict, State)
		}
		if s.Start != FromFirstSeen && s.Start != FromOrigin {
			bad("%s start %q is unknown: want %q or %q", where, s.Start, FromFirstSeen, FromOrigin)
		}
		if s.GapAlarm < 0 {
			bad("%s GapAlarm is %v, want more than zero", where, s.GapAlarm)
		}
	}
	checkStream("Config's", StreamConfig{Policy: c.Policy, Start: c.Start})
	for name := range c.Streams {
		if name == "" {
			bad("Config.Streams has an empty stream name")
		}
		checkStream(fmt.Sprintf("stream %q:", name), c.stream(name))
	}
	errs = append(errs, c.Limits.check("Config.Limits", defaultLimits))
	if c.ForgetAfter < 0 {
		bad("Config.ForgetAfter is %v, want zero (for ever) or more", c.ForgetAfter)
	}
	for _, n := range []struct {
		name     string
		value    *int
		def, min int
	}{
		{"BatchSize", &c.BatchSize, 500, 1},
		{"FetchBytes", &c.FetchBytes, 1 << 20, 1 << 10},
		{"FetchMaxBytes", &c.FetchMaxBytes, 64 << 20, 1 << 10},
		{"Attempts", &c.Attempts, 10, 1},
		{"LossLimit", &c.LossLimit, 20, 1},
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
		{"StallAlarm", &c.StallAlarm, time.Minute},
		{"MaxAhead", &c.MaxAhead, 24 * time.Hour},
		{"GapAlarm", &c.GapAlarm, defaultGapAlarm},
		{"PollInterval", &c.PollInterval, 5 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 0 {
			bad("Config.%s is %v, want more than zero", d.name, *d.value)
		}
	}
	if c.Begin == Latest && c.any(func(s StreamConfig) bool { return s.Policy == Strict && s.Start == FromOrigin }) {
		bad("Config.Begin is %q, and a stream starts %s: its first event would never be read", Latest, FromOrigin)
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
	if s.GapAlarm == 0 {
		s.GapAlarm = c.GapAlarm
	}
	return s
}

// leastFetch is how much is read of a partition at once, however many there are.
const leastFetch = 16 << 10

// fetchBytes is how much is read at once of each of so many partitions.
func (c *Config) fetchBytes(partitions int) int {
	part := max(c.FetchMaxBytes/max(partitions, 1), leastFetch)
	return min(c.FetchBytes, part)
}

// guard is the part of the configuration that decides.
func (c *Config) guard() GuardConfig {
	return GuardConfig{Consumer: c.Name, Schema: c.Schema, Policy: c.Policy, Start: c.Start, Streams: c.Streams, MaxAhead: c.MaxAhead, Mapping: c.Mapping,
		Limits: c.Limits, GapAlarm: c.GapAlarm, ForgetAfter: c.ForgetAfter}
}

// Begin says where to begin in a partition that nobody has read for this
// consumer.
type Begin string

const (
	// Earliest begins with the first record that the log has.
	Earliest Begin = "earliest"
	// Latest begins behind the last record that the log has when this consumer
	// first comes to it: what was published before is never read. Not for a
	// stream that starts [FromOrigin].
	Latest Begin = "latest"
)

// any tells whether some stream may be of this kind.
func (c *Config) any(is func(StreamConfig) bool) bool {
	if is(StreamConfig{Policy: c.Policy, Start: c.Start}) {
		return true
	}
	for name := range c.Streams {
		if is(c.stream(name)) {
			return true
		}
	}
	return false
}
