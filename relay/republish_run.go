package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// A page of a republish; what is in memory is no more.
const (
	republishRows  = 1000
	republishBytes = 4 << 20
)

// republisher is one run of [Republish].
type republisher struct {
	cfg  RepublishConfig
	conn *pgx.Conn
	pub  Publisher
	sql  republishStatements
	seen *seen
	// due is when the next batch may go, looked when it was last asked whether the
	// relays are paused.
	due, looked time.Time
	lookEvery   time.Duration

	targets map[string]Topic
	report  RepublishReport
	left    map[string]*Left
	sent    int64
	here    map[int64]bool // what of the page is done, by pos
	// voids are rows whose marker stands in the place of a later row: it is
	// published there, or in the end if that one isn't chosen.
	voids []markerPlace
}

// markerPlace is where a marker stands.
type markerPlace struct {
	topic, key string
	epoch, seq int64
}

// found is a row and what decides whether it can be published again.
type found struct {
	row
	xid uint64
}

type republishStatements struct {
	byPos, byStream, one, topics, pin, note string
}

// inSpan is what narrows a choice down, whatever the way to the rows. As
// conditions that fit no index, so that each statement has one way.
const inSpan = `($topic::text = '' or topic = $topic::text) and ($key::text = '' or key = $key::text)
   and ($since::timestamptz is null or created_at >= $since::timestamptz) and ($until::timestamptz is null or created_at < $until::timestamptz)`

func newRepublishStatements(name string) republishStatements {
	x := func(sql string, params ...string) string {
		for i, p := range params {
			sql = strings.ReplaceAll(sql, "$"+p+"::", fmt.Sprintf("$%d::", i+1))
		}
		return schema.Expand(sql, name)
	}
	cutBy := func(order, page string) string {
		sql := strings.Replace(cut, names+" from", "xid, "+names+" from", 1)
		sql = strings.Replace(sql, "order by p.pos", "order by "+order, 1)
		return strings.Replace(sql, "@page@", "select xid, "+columns+" from @schema@.outbox where "+page+" limit $rows::bigint", 1)
	}
	return republishStatements{
		byPos: x(cutBy("p.pos", `pos > $after::bigint and pos <= $last::bigint and `+inSpan+` order by pos`),
			"rows", "bytes", "after", "last", "topic", "key", "since", "until"),
		// Topic and key are of one stream, in the order of which there is an index.
		// The sums keep the planner from the primary key, and so from a sort.
		byStream: x(cutBy("p.epoch, p.seq", `topic = $topic::text and key = $key::text and (epoch, seq) > ($epoch::bigint, $seq::bigint) and pos + 0 >= $first::bigint and pos + 0 <= $last::bigint
   and ($since::timestamptz is null or created_at >= $since::timestamptz) and ($until::timestamptz is null or created_at < $until::timestamptz) order by epoch, seq`),
			"rows", "bytes", "topic", "key", "epoch", "seq", "first", "last", "since", "until"),
		one: x(`select xid, `+strings.Replace(names, "shard,", "shard::int,", 1)+` from @schema@.outbox where topic = $topic::text and key = $key::text and epoch = $epoch::bigint and seq = $seq::bigint`, "topic", "key", "epoch", "seq"),
		// From one topic to the next by the index, without the rows between.
		topics: x(`with recursive t as (
			(select topic from @schema@.outbox order by topic limit 1)
			union all select (select o.topic from @schema@.outbox o where o.topic > t.topic order by o.topic limit 1) from t where t.topic is not null)
			select topic from t where topic is not null`),
		pin:  x(`select coalesce(partitions, 0) from @schema@.relay_topic_pin($1, null)`),
		note: x(`select @schema@.relay_republished($1, nullif($2, ''), nullif($3, ''), $4::jsonb)`),
	}
}

func (r *republisher) run(ctx context.Context) error {
	var err error
	switch {
	case r.cfg.Key == "":
		err = r.walk(ctx)
	case r.cfg.Topic != "":
		err = r.stream(ctx, r.cfg.Topic)
	default:
		// Stream after stream: between streams there is no order.
		rows, e := r.conn.Query(ctx, r.sql.topics)
		if e != nil {
			return fmt.Errorf("relay: republish: list topics: %w", e)
		}
		topics, e := pgx.CollectRows(rows, pgx.RowTo[string])
		if e != nil {
			return fmt.Errorf("relay: republish: list topics: %w", e)
		}
		for i, topic := range topics {
			e := r.stream(ctx, topic)
			if isEvent(e) {
				err = lowest(err, e)
			} else if e != nil {
				if err != nil || i < len(topics)-1 {
					r.report.LastPos = 0 // of others not all is done that stands in front
				}
				return e
			}
		}
	}
	if err != nil && !isEvent(err) {
		return err
	}
	last := err
	if e := r.markers(ctx); e != nil {
		last = lowest(err, e)
	}
	for _, e := range []error{err, last} {
		var refused *eventError
		if errors.As(e, &refused) {
			r.report.LastPos = min(r.report.LastPos, refused.pos-1)
		}
	}
	return last
}

// bounds are the first and the last pos that are chosen. Events that are appended
// meanwhile are none of them, or it would run behind a busy outbox without an end.
func (r *republisher) bounds() (first, last int64) {
	last = r.seen.high
	if r.cfg.ToPos != 0 {
		last = min(last, r.cfg.ToPos)
	}
	return r.cfg.FromPos, last
}

func (r *republisher) span() (since, until *time.Time) {
	if !r.cfg.From.IsZero() {
		since = &r.cfg.From
	}
	if !r.cfg.To.IsZero() {
		until = &r.cfg.To
	}
	return since, until
}

// walk goes through the outbox by pos.
func (r *republisher) walk(ctx context.Context) error {
	first, last := r.bounds()
	since, until := r.span()
	for after := first - 1; ; {
		page, err := r.read(ctx, r.sql.byPos, republishRows, republishBytes, after, last, r.cfg.Topic, r.cfg.Key, since, until)
		if err != nil || len(page) == 0 {
			return err
		}
		slices.SortFunc(page, func(a, b found) int { return cmp.Compare(a.Pos, b.Pos) })
		after = page[len(page)-1].Pos
		if err := r.publish(ctx, page); err != nil {
			return err
		}
	}
}

// stream goes through one stream.
func (r *republisher) stream(ctx context.Context, topic string) error {
	first, last := r.bounds()
	since, until := r.span()
	for epoch, seq := int64(0), int64(0); ; {
		page, err := r.read(ctx, r.sql.byStream, republishRows, republishBytes, topic, r.cfg.Key, epoch, seq, first, last, since, until)
		if err != nil || len(page) == 0 {
			return err
		}
		slices.SortFunc(page, func(a, b found) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq)) })
		epoch, seq = page[len(page)-1].Epoch, page[len(page)-1].Seq
		if err := r.publish(ctx, page); err != nil {
			return err
		}
	}
}

// markers publishes those whose place was not chosen.
func (r *republisher) markers(ctx context.Context) error {
	for _, v := range slices.Clone(r.voids) { // publish takes out those that are done
		page, err := r.read(ctx, r.sql.one, v.topic, v.key, v.epoch, v.seq)
		if err != nil {
			return err
		}
		if err := r.publish(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// read reads rows as the relay does, so that they become the same records.
func (r *republisher) read(ctx context.Context, sql string, args ...any) ([]found, error) {
	rows, err := queryBinary(ctx, r.conn, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("relay: republish: read the outbox: %w", err)
	}
	defer rows.Close()
	p := page{limit: republishRows, bytes: republishBytes}
	var page []found
	for rows.Next() {
		f := fields{values: rows.RawValues()}
		x := found{xid: uint64(f.number())}
		if err := p.scan(&f); err != nil {
			return nil, err
		}
		x.row = p.rows[len(p.rows)-1]
		page = append(page, x)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("relay: republish: read the outbox: %w", err)
	}
	return page, nil
}

// publish publishes a page, as far as it can be published again.
func (r *republisher) publish(ctx context.Context, page []found) error {
	batches := map[string][]*Batch{} // by partition, in order
	weights := map[*Batch]int{}
	var order []*Batch
	for i := range page {
		x := &page[i]
		if why := r.seen.why(&x.row, x.xid); why != "" {
			r.leave(why, x.Pos)
			continue
		}
		if x.void {
			if place := (markerPlace{x.Stream, x.Key, x.Epoch, x.markerAt}); !slices.Contains(r.voids, place) {
				r.voids = append(r.voids, place)
			}
			continue
		}
		r.voids = slices.DeleteFunc(r.voids, func(m markerPlace) bool { return m == markerPlace{x.Stream, x.Key, x.Epoch, x.Seq} })
		if r.cfg.DryRun {
			r.count(&x.Record)
			continue
		}
		rec := x.Record
		if r.cfg.ToTopic != "" {
			rec.Topic = r.cfg.ToTopic
		}
		d, err := r.target(ctx, rec.Topic)
		if err != nil {
			return err
		}
		n := outbox.Partition([]byte(rec.Key), d.Partitions)
		lane := fmt.Sprintf("%s/%d", rec.Topic, n)
		var b *Batch
		if all := batches[lane]; len(all) > 0 {
			b = all[len(all)-1]
		}
		if b == nil || len(b.Records) >= r.cfg.BatchRecords || weights[b]+x.weight > min(r.cfg.BatchBytes, d.MaxMessageBytes-framing) {
			b = &Batch{Topic: rec.Topic, Partition: n}
			batches[lane] = append(batches[lane], b)
			order = append(order, b)
		}
		b.Records = append(b.Records, rec)
		weights[b] += x.weight
	}
	if err := r.sendAll(ctx, order); err != nil {
		return err
	}
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.result())
	}
	return ctx.Err()
}

// pace waits until n more records are within the rate. What could not be sent when
// it was due, in an outage of the broker say, is not made up for: what comes back
// would get all of it at once. A large batch at a small rate is a long wait, in
// which the relays may be paused.
func (r *republisher) pace(ctx context.Context, n int) error {
	now := time.Now()
	if r.due.Before(now) {
		r.due = now
	}
	wait := r.due.Sub(now)
	r.due = r.due.Add(time.Duration(float64(n) / float64(r.cfg.Rate) * float64(time.Second)))
	for end := now.Add(wait); wait > 0; wait = time.Until(end) {
		if err := pause(ctx, min(wait, r.lookEvery)); err != nil {
			return err
		}
		if err := r.mayGoOn(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// lookEvery is how often it is asked whether the relays are paused: as often as a
// relay asks that hears nothing.
const lookEvery = 5 * time.Second

// mayGoOn gives ErrPaused when an operator has paused the relays meanwhile.
func (r *republisher) mayGoOn(ctx context.Context) error {
	if !r.looked.IsZero() && time.Since(r.looked) < r.lookEvery {
		return nil
	}
	p, err := readPause(ctx, r.conn, r.cfg.Schema)
	if err != nil {
		return err
	}
	if p.Paused {
		return ErrPaused
	}
	r.looked = time.Now()
	return nil
}

func (r *republisher) count(e *outbox.Record) {
	switch e.Kind {
	case outbox.KindSkip:
		r.report.Markers++
	case outbox.KindEnd:
		r.report.Ends++
	default:
		r.report.Events++
	}
	r.report.LastPos = max(r.report.LastPos, e.Pos)
	if r.here != nil {
		r.here[e.Pos] = true
	}
}

func (r *republisher) leave(why string, pos int64) {
	l := r.left[why]
	if l == nil {
		l = &Left{Reason: why, First: pos}
		r.left[why] = l
	}
	l.Count++
	l.First = min(l.First, pos)
}

func (r *republisher) result() RepublishReport {
	report := r.report
	for _, l := range r.left {
		report.Left = append(report.Left, *l)
	}
	slices.SortFunc(report.Left, func(a, b Left) int { return strings.Compare(a.Reason, b.Reason) })
	return report
}

// note is what is kept of a republish.
func (c RepublishConfig) note(r RepublishReport) string {
	detail := map[string]any{"events": r.Events, "markers": r.Markers, "ends": r.Ends, "last_pos": r.LastPos}
	for name, v := range map[string]any{"to_topic": c.ToTopic, "from_pos": c.FromPos, "to_pos": c.ToPos} {
		if v != "" && v != int64(0) {
			detail[name] = v
		}
	}
	for name, v := range map[string]time.Time{"from": c.From, "to": c.To} {
		if !v.IsZero() {
			detail[name] = v.UTC()
		}
	}
	text, err := json.Marshal(detail)
	if err != nil {
		return "{}"
	}
	return string(text)
}
