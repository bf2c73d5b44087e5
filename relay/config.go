package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// Config configures [Run]. The zero value is usable.
type Config struct {
	// Schema is the schema that the migrations were applied to. Defaults to
	// "fenceline".
	Schema string

	// Name names this instance in its leases and in logs. Two instances with one
	// name are told apart all the same. At most 200 bytes. Defaults to host name
	// and process id.
	Name string

	// LeaseTTL is the lease time of this instance's shards: how long after its
	// death others take them over, at the latest. 1 s to one day. Defaults to
	// 10 s.
	LeaseTTL time.Duration

	// PageSize is the largest number of events that one query reads. Defaults
	// to 4000.
	PageSize int

	// PageBytes is the size at which a page is cut, however few events it has;
	// it can be exceeded by one event. At most half of MaxBytesInFlight.
	// Defaults to a quarter of MaxBytesInFlight.
	PageBytes int

	// BatchRecords is the largest number of records in one request to Kafka.
	// Requests are never held back to be filled. Defaults to 500.
	BatchRecords int

	// BatchBytes is the size at which a batch is sealed; a larger record
	// travels alone. Defaults to 640 KiB.
	BatchBytes int

	// MaxBytesInFlight bounds the events that were read and are not yet
	// acknowledged, in bytes, whatever the backlog. At least 4 MiB. Defaults
	// to 8 MiB.
	MaxBytesInFlight int

	// MaxRecordBytes is the largest record that producers may append, as
	// encoded; a topic that takes less is refused. Defaults to
	// outbox.MaxRecordBytes (900 KiB).
	MaxRecordBytes int

	// PollMin is the time between reads while events arrive. Defaults to 1 ms.
	PollMin time.Duration

	// PollMax is the time between reads that an idle relay backs off to while
	// producers wake it (outbox.Waker). Defaults to 200 ms.
	PollMax time.Duration

	// PollBlind is the same while nobody does: its LISTEN connection is lost, or
	// it finds events that nobody has announced. Defaults to 5 ms, or PollMax if
	// that is less.
	PollBlind time.Duration

	// CheckpointEvery is the number of acknowledged events after which the
	// cursor is stored. What was acknowledged since is published a second time
	// after a crash. Defaults to 5000.
	CheckpointEvery int

	// CheckpointInterval is the time after which the cursor is stored if
	// anything was acknowledged. Defaults to one second.
	CheckpointInterval time.Duration

	// PartitionGrace is how long one partition can fail, while the broker answers
	// and others go on, before its events are set aside so that they hold
	// nothing up; they follow when the partition works again. Defaults to 5 s.
	PartitionGrace time.Duration

	// TopicCheck is the time between checks that a topic in use is still what
	// it was: its partition count, its configuration. Defaults to one minute.
	TopicCheck time.Duration

	// Grace is how long a stop waits for requests in flight, and for a checkpoint
	// that is being stored. What is not acknowledged, or not stored, by then is
	// published a second time by the next instance. Defaults to 10 s.
	Grace time.Duration

	// Retention, if not nil, has this relay rotate the outbox and drop what is
	// published and old enough; of all instances one does it. Defaults to nil:
	// nothing is removed.
	Retention *RetentionConfig

	// AllowUnsafeDatabase accepts a server with fsync or full_page_writes off,
	// on which no promise holds. For tests on throw-away servers. Defaults to
	// false.
	AllowUnsafeDatabase bool

	// Health, if not nil, is told how this instance is. Defaults to nil.
	Health *Health

	// Logger receives what an operator should know. Defaults to slog.Default.
	Logger *slog.Logger

	// Hooks are told what happens. Defaults to nobody.
	Hooks Hooks

	signals signals
}

func (c Config) withDefaults() Config {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	wait := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	wait(&c.LeaseTTL, 10*time.Second)
	set(&c.PageSize, 4000)
	set(&c.MaxBytesInFlight, 8<<20)
	set(&c.PageBytes, c.MaxBytesInFlight/4)
	set(&c.BatchRecords, 500)
	set(&c.BatchBytes, 640<<10)
	set(&c.MaxRecordBytes, outbox.MaxRecordBytes)
	wait(&c.PollMin, time.Millisecond)
	wait(&c.PollMax, max(200*time.Millisecond, c.PollMin))
	wait(&c.PollBlind, min(5*time.Millisecond, c.PollMax))
	set(&c.CheckpointEvery, 5000)
	wait(&c.CheckpointInterval, time.Second)
	wait(&c.PartitionGrace, 5*time.Second)
	wait(&c.TopicCheck, time.Minute)
	wait(&c.Grace, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with c, each with the remedy.
// [Run] calls it.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("relay: "+format, args...)) }
	if err := schema.Validate(c.Schema); err != nil {
		bad("%w", err)
	}
	if len(c.Name) > 200 {
		bad("the instance name has %d bytes: use at most 200", len(c.Name))
	}
	if c.LeaseTTL < time.Second || c.LeaseTTL > 24*time.Hour {
		bad("lease time %v: use 1s to 24h; 10s is a good start", c.LeaseTTL)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"page size", c.PageSize}, {"page bytes", c.PageBytes}, {"batch records", c.BatchRecords}, {"batch bytes", c.BatchBytes},
		{"max record bytes", c.MaxRecordBytes}, {"checkpoint every", c.CheckpointEvery},
	} {
		if n.value < 0 {
			bad("%s is %d: use a positive number, or leave it out for the default", n.name, n.value)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"poll min", c.PollMin}, {"poll max", c.PollMax}, {"poll blind", c.PollBlind}, {"checkpoint interval", c.CheckpointInterval}, {"topic check", c.TopicCheck}, {"partition grace", c.PartitionGrace}, {"grace", c.Grace},
	} {
		if d.value < 0 {
			bad("%s is %v: use a positive duration, or leave it out for the default", d.name, d.value)
		}
	}
	if c.MaxBytesInFlight < 4<<20 {
		bad("max bytes in flight is %d: use at least 4 MiB, so that the largest events fit", c.MaxBytesInFlight)
	}
	if c.PageBytes > c.MaxBytesInFlight/2 {
		bad("page bytes is %d: use at most half of max bytes in flight, which is %d", c.PageBytes, c.MaxBytesInFlight)
	}
	if c.Retention != nil {
		if err := c.Retention.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.PollMax < c.PollMin {
		bad("poll max %v is below poll min %v: swap them", c.PollMax, c.PollMin)
	}
	return errors.Join(errs...)
}
