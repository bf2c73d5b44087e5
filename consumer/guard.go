package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// GuardConfig is how a [Guard] decides. Only Consumer is required.
type GuardConfig struct {
	// Consumer is the name under which guards are kept: at most 200 bytes.
	// Another name means another memory: nothing was applied yet. Required.
	Consumer string
	// Schema is where the consumer's part of the migrations was installed.
	// Defaults to "fenceline".
	Schema string
	// Policy holds for every stream that Streams doesn't name. Defaults to
	// [Strict].
	Policy Policy
	// Start holds for every stream that Streams doesn't name. Defaults to
	// [FromFirstSeen].
	Start Start
	// Streams are exceptions, by the name of the stream. What is empty in one
	// is taken from Policy and Start. Defaults to none.
	Streams map[string]StreamConfig
	// MaxAhead is how far an epoch may lie ahead of the database's clock before
	// it is not believed. Defaults to 24 hours.
	MaxAhead time.Duration
	// Mapping reads the records that were parked; it must be the one that made
	// the deliveries. Defaults to [Wire].
	Mapping Mapping
	// Limits bound what is kept of records that can't be applied yet. Where they
	// are set, call [Guard.Progress] and [Guard.Room]: somebody must read again
	// what was not stored. What is zero defaults to no limit.
	Limits Limits
	// GapAlarm is for [Guard.Overdue]: how long a stream may stand. Defaults to
	// 15 minutes.
	GapAlarm time.Duration
	// ForgetAfter is for [Guard.Forget]: how long the guard of an ended life is
	// kept. Defaults to 0, for ever.
	ForgetAfter time.Duration
	// ResumeLimit is how many parked records one transaction decides, at most;
	// the rest is for [Guard.Resume]. Defaults to 1,000.
	ResumeLimit int
}

// Guard is the decision table in a transaction: it locks the guards of a
// batch, calls a handler for what is to be applied, and moves the guards. It
// needs neither [Run] nor Kafka: any pgx.Tx at READ COMMITTED will do, and any
// source of records. It may be used by many goroutines at once. What it remembers
// itself is only which guards are there, as a hint; all that it decides with is in
// the database.
type Guard struct {
	cfg      GuardConfig
	settings map[string]StreamConfig
	sql      statements
	known    *known
}

// Result is what became of a record.
type Result struct {
	Position
	Outcome Outcome
	// Rule is the row of the decision table that matched, as in "4e".
	Rule string
	// Reason goes with Parked and Quarantined.
	Reason Reason
	// Alarm asks for an operator.
	Alarm bool
	// Topic, Partition and Offset say which copy it was.
	Topic     string
	Partition int
	Offset    int64
	// Resumed says that the record came out of the park, the dead letters or the
	// quarantine.
	Resumed bool
	// Unstored says that the record was to be kept and did not fit (see [Limits]):
	// the offset that is committed must not pass it. [Guard.Progress] sees to that,
	// and [Guard.Resume] by itself.
	Unstored bool
	// Unread says that a strict stream has moved, and that something of it did not fit
	// and is to be read again: that may be the next now, whatever [Guard.Room] says.
	Unread bool
	// Displaced says that the record had been parked before, and made room for one
	// that comes before it. It is Unstored.
	Displaced bool
	// Err is set where a stored record can't be read any more: an
	// [*UnreadableError]. It stays where it is, no row of the table was looked for,
	// and it is told once for as long as the error is the same.
	Err error
	// Why is the reason that an operator gave for giving the event up, if it is
	// Stale because of that.
	Why string
	// More says that further parked records of this stream may go on now, but
	// not in this transaction: call [Guard.Resume] after the commit.
	More bool
}

// NewGuard checks cfg. It doesn't touch the database: whether the schema fits
// this library is checked by schema checks at start, as [Run] does.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	var errs []error
	if cfg.Consumer == "" || len(cfg.Consumer) > 200 || !storable(cfg.Consumer) {
		errs = append(errs, fmt.Errorf("consumer: GuardConfig.Consumer is %.40q, want 1 to 200 bytes of UTF-8 without NUL", cfg.Consumer))
	}
	if cfg.Schema == "" {
		cfg.Schema = schema.Default
	}
	if err := schema.Validate(cfg.Schema); err != nil {
		errs = append(errs, fmt.Errorf("consumer: GuardConfig.Schema: %w", err))
	}
	if cfg.Policy == "" {
		cfg.Policy = Strict
	}
	if cfg.Start == "" {
		cfg.Start = FromFirstSeen
	}
	if cfg.MaxAhead == 0 {
		cfg.MaxAhead = defaultMaxAhead
	}
	if cfg.Mapping == nil {
		cfg.Mapping = Wire
	}
	if cfg.ResumeLimit == 0 {
		cfg.ResumeLimit = 1000
	}
	if cfg.GapAlarm == 0 {
		cfg.GapAlarm = defaultGapAlarm
	}
	if cfg.MaxAhead < 0 || cfg.ResumeLimit < 0 || cfg.GapAlarm < 0 || cfg.ForgetAfter < 0 {
		errs = append(errs, fmt.Errorf("consumer: GuardConfig.MaxAhead (%v), ResumeLimit (%d), GapAlarm (%v) and ForgetAfter (%v) can't be negative",
			cfg.MaxAhead, cfg.ResumeLimit, cfg.GapAlarm, cfg.ForgetAfter))
	}
	errs = append(errs, cfg.Limits.check("GuardConfig.Limits", noLimits))
	g := &Guard{cfg: cfg, settings: make(map[string]StreamConfig, len(cfg.Streams)), known: newKnown()}
	check := func(where string, c StreamConfig) {
		if c.Policy != Strict && c.Policy != State || c.Start != FromFirstSeen && c.Start != FromOrigin {
			errs = append(errs, fmt.Errorf("consumer: %s has policy %q and start %q, want %q or %q, and %q or %q",
				where, c.Policy, c.Start, Strict, State, FromFirstSeen, FromOrigin))
		}
	}
	check("GuardConfig", StreamConfig{Policy: cfg.Policy, Start: cfg.Start})
	for name, c := range cfg.Streams {
		if c.Policy == "" {
			c.Policy = cfg.Policy
		}
		if c.Start == "" {
			c.Start = cfg.Start
		}
		if c.GapAlarm < 0 {
			errs = append(errs, fmt.Errorf("consumer: GuardConfig.Streams[%q].GapAlarm is %v, want more than zero", name, c.GapAlarm))
		}
		check(fmt.Sprintf("GuardConfig.Streams[%q]", name), c)
		g.settings[name] = c
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	g.sql = newStatements(cfg.Schema)
	return g, nil
}

// stream is what holds for a stream.
func (g *Guard) stream(name string) StreamConfig {
	if c, ok := g.settings[name]; ok {
		return c
	}
	return StreamConfig{Policy: g.cfg.Policy, Start: g.cfg.Start}
}

// Apply decides each of the deliveries in order, calls h for those that are to
// be applied, and writes parks, dead letters, quarantine and guards, all in tx.
// Records that waited in the park for one of these go on in the same
// transaction. The caller commits.
//
// The results are those of the deliveries, in the same order, followed by those of
// parked records. After the commit, whoever finds Result.More set calls
// [Guard.Resume]; [More] collects the streams.
//
// Apply locks the guards of the batch, and no one else decides on these
// streams until tx ends. Call it once per transaction: guards are locked in
// key order, which two calls can't keep, and two such transactions could wait
// for each other.
//
// After an error, tx can only be rolled back: it is put into the failed state,
// so that a handler's half-done work can't be committed without its guard. The
// error is a [*HandlerError] if a handler failed; [ErrIsolation] or a
// [*StreamChangedError] if tx or the configuration must change; otherwise it is
// the database's.
func (g *Guard) Apply(ctx context.Context, tx pgx.Tx, deliveries []Delivery, h Handler) ([]Result, error) {
	return g.apply(ctx, tx, deliveries, h, nil)
}

// apply leaves what it would write last to the caller, where end is given.
func (g *Guard) apply(ctx context.Context, tx pgx.Tx, deliveries []Delivery, h Handler, end *last) ([]Result, error) {
	b := newBatch(ctx, g, tx, h)
	b.tell(end)
	err := b.load(g.keysOf(deliveries), deliveries)
	results := make([]Result, 0, len(deliveries))
	for i := 0; i < len(deliveries) && err == nil && !(i > 0 && b.cut()); i++ {
		b.index = i
		d := deliveries[i]
		var r Result
		r, err = b.decide(&d)
		results = append(results, r)
	}
	if end != nil {
		end.applied = len(results)
	}
	return b.end(results, err)
}

// tell has the caller send what is written last.
func (b *batch) tell(end *last) {
	b.last = end
	if end != nil && end.alone {
		b.budget = 0
	}
}

// cut tells whether the caller wants to commit what there is.
func (b *batch) cut() bool { return b.last != nil && b.last.whole.Err() != nil }

// end writes what is left, and gives the results.
func (b *batch) end(results []Result, err error) ([]Result, error) {
	if err == nil {
		err = b.finish()
	}
	results = append(append(results, b.resumed...), b.displaced...)
	if err == nil {
		err = b.explainStale(results)
	}
	if err != nil {
		spoil(b.ctx, b.tx)
		return nil, err
	}
	return b.marked(results), nil
}

// Resume goes on with the parked records of these streams, as far as the table
// says apply and up to about GuardConfig.ResumeLimit, and tries the dead letters
// and quarantined records that an operator wants to be tried; see [Guard.Apply]
// for the rest. The results are those of these records; if More is set in some,
// call it again with [More] of them, in another transaction.
func (g *Guard) Resume(ctx context.Context, tx pgx.Tx, keys []StreamKey, h Handler) ([]Result, error) {
	results, err := g.resume(ctx, tx, keys, h, nil)
	if err == nil {
		err = g.noteUnstored(ctx, tx, results)
	}
	if err != nil {
		spoil(ctx, tx)
		return nil, err
	}
	return results, nil
}

func (g *Guard) resume(ctx context.Context, tx pgx.Tx, keys []StreamKey, h Handler, end *last) ([]Result, error) {
	b := newBatch(ctx, g, tx, h)
	b.tell(end)
	err := b.load(slices.Clone(keys), nil)
	for i := 0; i < len(b.order) && err == nil; i++ {
		b.budget = max(b.budget, 1) // each stream gets on, and has a result to be marked
		err = b.recheck(b.entries[b.order[i]])
	}
	return b.end(nil, err)
}

// Pending returns up to limit streams for [Guard.Resume] that may go on although
// nothing of theirs may arrive any more: an operator has decided something, a
// process ended between a transaction that left some over and the next, or what
// did not fit has been read again. Ask at start and every few seconds. A stream
// that was resumed is pending no more, whether it has gone on or not.
func (g *Guard) Pending(ctx context.Context, tx pgx.Tx, limit int) ([]StreamKey, error) {
	return g.pendingBehind(ctx, tx, StreamKey{}, limit)
}

// pendingBehind gives those behind a stream, in order.
func (g *Guard) pendingBehind(ctx context.Context, tx pgx.Tx, at StreamKey, limit int) ([]StreamKey, error) {
	rows, err := tx.Query(ctx, g.sql.pending, g.cfg.Consumer, limit, at.Stream, at.Key)
	if err != nil {
		return nil, fmt.Errorf("consumer: looking for parked records that can go on: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k StreamKey, err error) {
		return k, row.Scan(&k.Stream, &k.Key)
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: looking for parked records that can go on: %w", err)
	}
	return keys, nil
}

// Fail notes that a stored event's handler fails for good, and why. The event
// stays where it is (one out of the quarantine is parked or dead-lettered) and
// isn't tried again by itself, nor is anything behind it in a strict stream.
// Call it, in a transaction of its own, with the delivery of a
// [*HandlerError] whose Resumed is set. If the event has been decided in the
// meantime, nothing happens.
func (g *Guard) Fail(ctx context.Context, tx pgx.Tx, d Delivery, cause error) error {
	b := newBatch(ctx, g, tx, nil)
	err := b.load([]StreamKey{d.Position().StreamKey}, nil)
	if err == nil {
		err = b.fail(&d, cause)
	}
	if err == nil {
		err = g.noteUnstored(ctx, tx, b.displaced)
	}
	if err != nil {
		spoil(ctx, tx)
		return fmt.Errorf("consumer: noting that %s fails: %w", d.Position(), err)
	}
	return nil
}

// More returns the streams of results whose parked records are to go on in
// another transaction.
func More(results []Result) []StreamKey {
	var keys []StreamKey
	for _, r := range results {
		if r.More && !slices.Contains(keys, r.StreamKey) {
			keys = append(keys, r.StreamKey)
		}
	}
	return keys
}

// keysOf lists the streams whose guards a batch needs. What is decided without
// a guard needs none, and may have no usable key.
func (g *Guard) keysOf(ds []Delivery) []StreamKey {
	keys := make([]StreamKey, 0, len(ds))
	for i := range ds {
		if d := &ds[i]; d.Malformed == nil && g.check(d) == nil {
			keys = append(keys, StreamKey{d.Stream, d.Key})
		}
	}
	return keys
}

// spoil makes COMMIT impossible. An error of the database has done so already.
// What the caller cancelled must not keep it from happening.
func spoil(ctx context.Context, tx pgx.Tx) {
	conn := tx.Conn()
	if conn == nil || conn.IsClosed() || conn.PgConn().TxStatus() != 'T' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = tx.Exec(ctx, spoilSQL)
}

// input is what a decision about rec depends on.
func (b *batch) input(e *entry, rec *outbox.Record, partition int) Input {
	s := b.stream(rec.Stream)
	forgotten := b.forgotten[rec.Stream]
	if b.admitted {
		forgotten = 0
	}
	now := b.now
	if b.operator {
		// It decides only what is parked, so what the consumer has believed, by a
		// MaxAhead that the operator may not know.
		now = time.Time{}
	}
	return Input{
		Row: e.row, Forgotten: forgotten,
		Truncated: b.truncated[Partition{rec.Topic, partition}],
		Discarded: b.dead[positionOf(rec)] == discarded,
		Policy:    s.Policy, Start: s.Start, Record: rec, Now: now, MaxAhead: b.g.cfg.MaxAhead,
	}
}

func positionOf(r *outbox.Record) Position {
	return Position{StreamKey{r.Stream, r.Key}, r.Epoch, r.Seq, kindOf(r)}
}
