package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const defaultGapAlarm = 15 * time.Minute

// Blocked is a stream that stands.
type Blocked struct {
	StreamKey
	// Reason says why, Since since when on the database's clock.
	Reason Reason
	Since  time.Time
	// Epoch and Seq are what its guard has reached.
	Epoch, Seq int64
	// Parked and Bytes are what is parked of it.
	Parked, Bytes int64
	// Unstored says that something of it did not fit into the park and must be
	// read again.
	Unstored bool
}

// Overdue lists up to limit streams that have been standing for longer than
// their GapAlarm, the longest ones first. Something that should fill them must
// have been lost, or somebody must decide: the remedies are to publish again
// what is missing (relay republish), and `relay inbox parked`.
func (g *Guard) Overdue(ctx context.Context, tx pgx.Tx, limit int) ([]Blocked, error) {
	var names []string
	var seconds []float64
	for name, c := range g.settings {
		if c.GapAlarm > 0 {
			names, seconds = append(names, name), append(seconds, c.GapAlarm.Seconds())
		}
	}
	rows, err := tx.Query(ctx, g.sql.overdue, g.cfg.Consumer, names, seconds, g.cfg.GapAlarm.Seconds(), limit)
	if err != nil {
		return nil, fmt.Errorf("consumer: looking for streams that stand: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanBlocked)
	if err != nil {
		return nil, fmt.Errorf("consumer: looking for streams that stand: %w", err)
	}
	return list, nil
}

func scanBlocked(row pgx.CollectableRow) (b Blocked, err error) {
	return b, row.Scan(&b.Stream, &b.Key, &b.Reason, &b.Since, &b.Epoch, &b.Seq, &b.Parked, &b.Bytes, &b.Unstored)
}

// Forgetting is how far a round of [Guard.Forget] has come. Its zero value
// begins one.
type Forgetting struct {
	// Done says that the round is over.
	Done bool

	stream string
	after  string
	begun  bool
}

// forgetPage is how many guards one call of Forget looks at.
const forgetPage = 1000

// Forget removes guards of lives that have ended and did not move for
// GuardConfig.ForgetAfter, and remembers for their whole stream up to which
// epoch it did so. It never lets an old life in again: of an epoch up to that
// one, a key without a guard is put into quarantine. It looks at one page of
// guards; call it, each time in a transaction of its own, until f.Done. While
// something of a partition went unread, or did not fit, nothing is forgotten.
func (g *Guard) Forget(ctx context.Context, tx pgx.Tx, f *Forgetting) (n int64, err error) {
	if g.cfg.ForgetAfter <= 0 || f.Done {
		f.Done = true
		return 0, nil
	}
	if f.stream == "" {
		err := tx.QueryRow(ctx, g.sql.nextStream, g.cfg.Consumer, f.after, f.begun).Scan(&f.stream)
		if errors.Is(err, pgx.ErrNoRows) {
			f.Done = true
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("consumer: looking for streams to forget of: %w", err)
		}
		f.begun, f.after = true, ""
	}
	var next *string
	if err := tx.QueryRow(ctx, g.sql.forget, g.cfg.Consumer, f.stream, f.after, g.cfg.ForgetAfter.Seconds(), forgetPage).Scan(&n, &next); err != nil {
		return 0, fmt.Errorf("consumer: forgetting guards of %q: %w", f.stream, err)
	}
	if next != nil {
		f.after = *next
		return n, nil
	}
	f.after, f.stream = f.stream, ""
	return n, nil
}

type watchStatements struct{ overdue, nextStream, forget, pin string }

func newWatchStatements(x func(string) string) watchStatements {
	return watchStatements{
		overdue: x(`
select g.stream, g.key, g.blocked, g.blocked_since, g.epoch, g.seq, g.parked_rows, g.parked_bytes, g.unstored <> '{}'
  from @schema@.guard g
  left join unnest($2::text[], $3::float8[]) as x(stream, seconds) on x.stream = g.stream
 where g.consumer = $1 and g.blocked is not null and g.blocked_since < clock_timestamp() - make_interval(secs => coalesce(x.seconds, $4))
 order by g.blocked_since, g.stream, g.key
 limit $5`),
		// Of two members that begin at the same time the second waits here for the
		// first, and finds nothing: its row is newer than this statement. The next
		// one sees it.
		pin: x(`
with fresh as (
  insert into @schema@.consumer_topic (consumer, topic, partitions) values ($1, $2, $3) on conflict do nothing returning partitions
)
select partitions from fresh
union all
select partitions from @schema@.consumer_topic where consumer = $1 and topic = $2
limit 1`),
		nextStream: x(`select stream from @schema@.consumer_stream where consumer = $1 and (not $3 or stream > $2) order by stream limit 1`),
		forget:     x(`select forgotten, next_key from @schema@.forget_guards($1, $2, $3, make_interval(secs => $4), $5)`),
	}
}
