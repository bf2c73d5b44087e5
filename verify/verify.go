package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// ErrNoTopic is what a [Log] answers for a topic that does not exist.
var ErrNoTopic = errors.New("verify: the topic does not exist")

// Log reads topics. Package consumer/kafkasource opens what reads Kafka
// (OpenLog); the example of [Run] has the few lines that make a Log of it.
type Log interface {
	// Spans gives what the partitions of a topic hold, in the order of their
	// numbers from 0. It answers ErrNoTopic for a topic that doesn't exist.
	Spans(ctx context.Context, topic string) ([]Span, error)
	// Read gives the records of a partition with offsets in [from, to), in
	// order. Records of aborted transactions are left out. An error of f ends it.
	Read(ctx context.Context, topic string, partition int, from, to int64, f func(LogRecord) error) error
}

// Span is what a partition's log holds: offsets from Start up to, not
// including, End.
type Span struct{ Start, End int64 }

// LogRecord is a record as Kafka has it.
type LogRecord struct {
	Offset      int64
	TimestampMS int64
	Key, Value  []byte
	Headers     []outbox.WireHeader
}

// Consumer is a consumer whose guards are compared.
type Consumer struct {
	// Name is that of its consumer.Config. Required.
	Name string
	// Pool reaches the database that its guards are in; a login with the role
	// fenceline_monitor is enough. Required.
	Pool *pgxpool.Pool
	// Schema is where its tables are. Defaults to "fenceline".
	Schema string
}

// Config says what is compared.
type Config struct {
	// Producer reaches the database of the outbox. The login needs the role
	// fenceline_relay, which alone may read payloads, and fenceline_monitor, which
	// may read receipts. Required.
	Producer *pgxpool.Pool
	// Schema is where the producer's tables are. Defaults to "fenceline".
	Schema string
	// Log reads the topics. Required.
	Log Log
	// Topics are read besides those of the outbox's streams: where events were
	// republished to. Defaults to none.
	Topics []string
	// Consumers are compared, too. Defaults to none.
	Consumers []Consumer

	// Found is called with each finding, from one goroutine. Defaults to doing
	// nothing: the report counts all the same.
	Found func(Finding)
	// Progress is called now and then with the stage and how much of it is done.
	// Total is 0 where it isn't known. Defaults to doing nothing.
	Progress func(stage string, done, total int64)

	// Dir is where the temporary directory is made. Defaults to os.TempDir.
	Dir string
	// BucketEvents is about how many rows, records and guards are compared at a
	// time. Defaults to 200,000, about 64 MiB.
	BucketEvents int
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) check() error {
	var errs []error
	if c.Producer == nil {
		errs = append(errs, errors.New("verify: no Config.Producer: give it the pool of the outbox's database"))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("verify: no Config.Log: give it something that reads the topics"))
	}
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	errs = append(errs, schema.Validate(c.Schema))
	seen := map[string]bool{}
	c.Consumers = slices.Clone(c.Consumers)
	for i := range c.Consumers {
		k := &c.Consumers[i]
		if k.Schema == "" {
			k.Schema = schema.Default
		}
		errs = append(errs, schema.Validate(k.Schema))
		switch {
		case k.Name == "":
			errs = append(errs, errors.New("verify: a consumer without a name: give it the one in its consumer.Config"))
		case seen[k.Name]:
			errs = append(errs, fmt.Errorf("verify: consumer %q is there twice", k.Name))
		case k.Pool == nil:
			errs = append(errs, fmt.Errorf("verify: consumer %q has no pool: give it one to the database that its guards are in", k.Name))
		}
		seen[k.Name] = true
	}
	if c.BucketEvents < 0 {
		errs = append(errs, fmt.Errorf("verify: Config.BucketEvents is %d, want at least 1", c.BucketEvents))
	}
	if c.BucketEvents == 0 {
		c.BucketEvents = 200_000
	}
	if c.Found == nil {
		c.Found = func(Finding) {}
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}

// run is one comparison under way.
type run struct {
	cfg    Config
	report Report
	spool  *spool
	spans  map[string][]Span // of the topics that exist
	ours   map[string]bool   // topics of the outbox's streams, and those of Config.Topics
	former map[string][]formerly
	since  int64       // events created from then on (µs) are still in the outbox
	gaps   []gap       // of the outbox's positions
	born   int64       // when the database's present history began, if it isn't the first; else 0
	follow []following // of the consumers
}

// Run compares everything once. The error is that something could not be read;
// what disagrees is in the report, and is told to Config.Found as it is found.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, spans: map[string][]Span{}, ours: map[string]bool{}, report: Report{Found: map[Kind]int64{}}}
	dir, err := os.MkdirTemp(cfg.Dir, "fenceline-verify-")
	if err != nil {
		return nil, fmt.Errorf("verify: a directory for what is read: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// The order of these is explained in doc.go.
	at, err := r.readCursors(ctx)
	if err != nil {
		return nil, err
	}
	topics, records, err := r.findTopics(ctx)
	if err != nil {
		return nil, err
	}
	if r.spool, err = newSpool(dir, (at.estimate+records)/int64(cfg.BucketEvents)+1); err != nil {
		return nil, err
	}
	defer r.spool.close()
	if err := r.readTopics(ctx, topics, records); err != nil {
		return nil, err
	}
	if err := r.readConsumers(ctx); err != nil {
		return nil, err
	}
	if err := r.readProducer(ctx, at); err != nil {
		return nil, err
	}
	if err := r.judge(ctx); err != nil {
		return nil, err
	}
	return &r.report, nil
}

func (r *run) found(f Finding) {
	r.report.Found[f.Kind]++
	r.cfg.Found(f)
}
