package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// RepublishConfig says what [Republish] publishes again. At least one of Key,
// FromPos, ToPos, From and To must be set; an event is chosen if it agrees with
// all that are.
type RepublishConfig struct {
	// Schema is the schema that the migrations were applied to. Defaults to
	// "fenceline".
	Schema string

	// Who is who does this, to be noted with it, 1 to 255 bytes. Required.
	Who string

	// Key chooses the events of one key, Topic those that were appended to one
	// topic. Default to any.
	Key, Topic string

	// FromPos and ToPos choose by pos, both ends included. Default to the first
	// event and the last that is there when the call begins.
	FromPos, ToPos int64

	// From and To choose by the time of the append, From included, To not.
	// Default to the first event and the last.
	From, To time.Time

	// ToTopic is where the copies go. They stay copies of events of the stream
	// to which these were appended. Defaults to that topic.
	ToTopic string

	// Rate is the largest number of records in a second, on average, also after
	// an outage. Defaults to 1,000.
	Rate int

	// BatchRecords is the largest number of records in one request to Kafka.
	// Defaults to 500, or Rate if that is less.
	BatchRecords int

	// BatchBytes is the size at which a batch is sealed; a larger record travels
	// alone. Defaults to 640 KiB.
	BatchBytes int

	// MaxRecordBytes is the largest record that producers may append; a topic
	// that takes less is refused. Defaults to outbox.MaxRecordBytes (900 KiB).
	MaxRecordBytes int

	// DryRun publishes nothing and gives the report all the same. Defaults to
	// false.
	DryRun bool

	// Progress is told, after each page that was read, what was done up to
	// there. Defaults to nobody.
	Progress func(RepublishReport)

	// Logger receives what an operator should know. Defaults to slog.Default.
	Logger *slog.Logger

	lookEvery time.Duration // of a test
}

// RepublishReport is what was published again.
type RepublishReport struct {
	// Events, Markers and Ends are the numbers of events, skip markers and end
	// records. An event that was skipped counts as its marker does.
	Events, Markers, Ends int64
	// LastPos is the pos up to which everything that was chosen is done, also when
	// it ends early: whoever goes on behind it leaves nothing out. 0 if there was
	// nothing, or that can't be said, as of several streams.
	LastPos int64
	// Left are the chosen events that were not published again, by reason.
	Left []Left
}

// Left is a number of events that a republish leaves alone, and why.
type Left struct {
	// Reason is one of the constants below.
	Reason string
	// Count is how many they are, First the pos of the first.
	Count, First int64
}

// Why a republish leaves an event alone. In each case the relay is still to
// publish it for the first time; a copy in front of that would stand before the
// events that precede it.
const (
	// LeftUnpublished: no stored cursor has passed it.
	LeftUnpublished = "not published yet"
	// LeftRefused: its topic is refused, and it waits for that.
	LeftRefused = "its topic is refused"
	// LeftHeld: its stream is held at or before it.
	LeftHeld = "its stream is held"
)

// Republish publishes events once more, byte-identical to the first time:
// for consumers that have lost some, or to fill another topic. What was skipped
// is a marker again, and never the event.
//
// Only what a cursor of the relay's has passed is published, which the stored
// cursors decide at the beginning; so every copy is a second one, and consumers
// drop it where they have the first. What is left alone is in the report, and
// so are the events that were published when it ends early, by ctx or with an
// error: a [*TopicError] for a topic that can't be written to, a
// [*RefusedError] for an event that the broker refuses, one of the database's.
// A standby is refused with a [*SettingError], a database that was restored with
// fencing.ErrHistory: neither knows for sure what was skipped.
// An outage of the broker is waited out. While the relays are paused it is
// [ErrPaused], but for a dry run.
// When they are paused meanwhile it ends with that, within five seconds, or when
// what is on its way has its answer. What an outage has cost in time is not made up
// for by a higher rate.
//
// A login needs the role fenceline_relay. The relay need not run, and may. The
// publisher stays the caller's, and must not be the relay's.
func Republish(ctx context.Context, pool *pgxpool.Pool, publisher Publisher, cfg RepublishConfig) (RepublishReport, error) {
	if err := cfg.Validate(); err != nil {
		return RepublishReport{}, err
	}
	cfg = cfg.withDefaults()
	if err := schema.Check(ctx, pool, cfg.Schema, schema.Producer); err != nil {
		return RepublishReport{}, fmt.Errorf("relay: %w", err)
	}
	// Who has paused the relays, for the broker's sake maybe, means this too.
	switch p, err := ReadPause(ctx, pool, cfg.Schema); {
	case err != nil:
		return RepublishReport{}, err
	case p.Paused && !cfg.DryRun:
		return RepublishReport{}, ErrPaused
	}
	if err := direct(ctx, pool); err != nil {
		return RepublishReport{}, err
	}
	conn, err := dial(ctx, pool, readerSettings)
	if err != nil {
		return RepublishReport{}, err
	}
	defer hangUp(conn)
	if !cfg.DryRun {
		if err := trustworthy(ctx, conn, cfg.Schema); err != nil {
			return RepublishReport{}, err
		}
	}
	r := &republisher{cfg: cfg, conn: conn, pub: publisher, sql: newRepublishStatements(cfg.Schema), targets: map[string]Topic{}, left: map[string]*Left{}, lookEvery: cfg.lookEvery}
	if r.seen, err = loadSeen(ctx, conn, cfg.Schema); err != nil {
		return RepublishReport{}, err
	}
	err = r.run(ctx)
	report := r.result()
	if !cfg.DryRun && r.sent > 0 {
		// Also when it was cut off.
		note, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if e := write(note, pool, r.sql.note, []any{cfg.Who, cfg.Topic, cfg.Key, cfg.note(report)}, nil); e != nil {
			cfg.Logger.Warn("could not note the republish", "error", e)
		}
	}
	return report, err
}

// trustworthy refuses a database that may not know what was skipped: a standby has
// not replayed it yet, and one that was restored has lost it. The event would then
// be published behind its own marker. It asks the session that reads: another of the
// pool's can be with another server.
func trustworthy(ctx context.Context, conn *pgx.Conn, name string) error {
	err := dbcheck.Check(ctx, conn, name, false)
	var p *dbcheck.Problem
	if errors.As(err, &p) {
		return (*SettingError)(p)
	}
	var same bool
	if err == nil {
		err = conn.QueryRow(ctx, schema.Expand(sameHistorySQL, name)).Scan(&same)
	}
	switch {
	case err != nil:
		return fmt.Errorf("relay: republish: look at the database: %w", err)
	case !same:
		return fmt.Errorf("relay: republish: this database was restored, promoted or copied, and may have lost what was skipped: \"relay history show\" tells what has changed; \"relay history confirm\" if nothing can have been lost, else \"relay history bump\": %w", fencing.ErrHistory)
	}
	return nil
}

func (c RepublishConfig) withDefaults() RepublishConfig {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	set(&c.Rate, 1000)
	set(&c.BatchRecords, min(500, c.Rate))
	set(&c.BatchBytes, 640<<10)
	set(&c.MaxRecordBytes, outbox.MaxRecordBytes)
	if c.lookEvery == 0 {
		c.lookEvery = lookEvery
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with c, each with the remedy.
// [Republish] calls it.
func (c RepublishConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("relay: republish: "+format, args...))
	}
	if err := schema.Validate(c.Schema); err != nil {
		bad("%w", err)
	}
	if len(c.Who) < 1 || len(c.Who) > 255 {
		bad("who does this has %d bytes: use 1 to 255", len(c.Who))
	}
	if c.Key == "" && c.FromPos == 0 && c.ToPos == 0 && c.From.IsZero() && c.To.IsZero() {
		bad("nothing chooses the events: name a key, a range of pos or a time span")
	}
	if c.FromPos < 0 || c.ToPos < 0 || c.ToPos != 0 && c.ToPos < c.FromPos {
		bad("the range of pos from %d to %d is empty: the first comes first", c.FromPos, c.ToPos)
	}
	if !c.From.IsZero() && !c.To.IsZero() && !c.From.Before(c.To) {
		bad("the time span from %v to %v is empty: the earlier comes first", c.From, c.To)
	}
	for name, n := range map[string]int{"rate": c.Rate, "batch records": c.BatchRecords, "batch bytes": c.BatchBytes, "max record bytes": c.MaxRecordBytes} {
		if n < 0 {
			bad("%s is %d: use a positive number, or leave it out for the default", name, n)
		}
	}
	return errors.Join(errs...)
}

// seen is what the relays have published, as stored at one moment.
type seen struct {
	cursors []*flow
	forks   []*fork
	held    map[streamKey]int64
	high    int64 // the sequence's value then: what comes behind it is published by none of them
}

// why says why a row can't be published again; empty if it can. As in a session,
// a partition's fork comes before its topic's, and that before the shard.
func (s *seen) why(r *row, xid uint64) string {
	if pos, held := s.held[streamKey{r.Stream, r.Key}]; held && r.Pos >= pos {
		return LeftHeld
	}
	var owner *fork
	for _, f := range s.forks {
		if f.has(r) && (owner == nil || f.rank() > owner.rank()) {
			owner = f
		}
	}
	if owner != nil {
		if owner.flow.acked.passed(xid, r.Pos) {
			return ""
		}
		return LeftRefused
	}
	for _, f := range s.cursors {
		if f.shards.has(r.shard) && f.acked.passed(xid, r.Pos) {
			return ""
		}
	}
	return LeftUnpublished
}

// passed: a row that is committed is behind the cursor.
func (c cursor) passed(xid uint64, pos int64) bool {
	return !c.s1.running(xid) || !c.boundary() && !c.s2.running(xid) && pos <= c.last
}

// loadSeen reads cursors, forks and holds at one moment: a stream that is
// resumed, or a topic that joins, in between would be in neither.
func loadSeen(ctx context.Context, conn *pgx.Conn, name string) (*seen, error) {
	out := &seen{held: map[streamKey]int64{}}
	sql := newStatements(name)
	s := &session{sql: &sql, shards: ^shardSet(0)}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		own := s.shards.list()
		if err := s.loadCursors(ctx, tx, own); err != nil {
			return err
		}
		out.cursors = []*flow{&s.main}
		for _, f := range s.forks {
			out.cursors = append(out.cursors, &f.flow)
		}
		s.forks = nil
		if err := s.loadForks(ctx, tx, own); err != nil {
			return err
		}
		out.forks = s.forks
		if err := tx.QueryRow(ctx, schema.Expand("select coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0)", name)).Scan(&out.high); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, schema.Expand("select topic, key, pos from @schema@.relay_held", name))
		if err != nil {
			return err
		}
		var k streamKey
		var pos int64
		_, err = pgx.ForEachRow(rows, []any{&k.topic, &k.key, &pos}, func() error {
			out.held[k] = pos
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("relay: republish: read what is published: %w", err)
	}
	return out, nil
}
