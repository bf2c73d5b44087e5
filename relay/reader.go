package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// reader reads windows, page by page, on a connection of its own. It has no
// memory: where to read is in the cursor.
type reader struct {
	conn  *pgx.Conn
	sql   *statements
	pid   uint32
	rows  int // the largest number of rows in a page
	bytes int // the weight at which a page is cut
}

// filter says which topics a flow reads: all but these, or only these.
type filter struct {
	topics []string
	only   bool
}

// row is an event as read, and its weight: an upper estimate of its size in a
// request.
type row struct {
	outbox.Record
	weight int
}

// chunk is what one read gave: rows in the order of pos, the cursor while some
// of them are not behind it, and the cursor when all are.
type chunk struct {
	rows          []row
	during, after cursor
	// high is the sequence's value, if the read took a new snapshot.
	high int64
}

// poll opens a window at a boundary, and reads its first page. pairLow is the
// L of a pair that was committed before this call.
//
// It is one statement because s2 must be the snapshot that the rows were read
// under: between two statements a transaction could commit that the second one
// sees and s2 doesn't contain, or the other way round.
func (r *reader) poll(ctx context.Context, c cursor, f filter, pairLow int64) (chunk, error) {
	xids := c.s1.xip
	if xids == nil {
		xids = []uint64{}
	}
	rows, err := r.conn.Query(ctx, r.sql.poll, r.rows, r.bytes, f.list(), f.only, xids, c.s1.text, c.low)
	if err != nil {
		return chunk{}, fmt.Errorf("relay: read the outbox: %w", err)
	}
	defer rows.Close()
	p := page{limit: r.rows, bytes: r.bytes}
	var pid uint32
	var high int64
	var text string
	for rows.Next() {
		var s2 *string
		if err := p.scan(rows, &pid, &high, &s2); err != nil {
			return chunk{}, err
		}
		if s2 != nil {
			text = *s2
		}
	}
	if err := rows.Err(); err != nil {
		return chunk{}, fmt.Errorf("relay: read the outbox: %w", err)
	}
	if pid != r.pid {
		return chunk{}, &PoolerError{Reason: fmt.Sprintf("the reader's session moved from backend %d to backend %d", r.pid, pid)}
	}
	s2, err := parseSnapshot(text)
	if err != nil {
		return chunk{}, err
	}
	ch := p.chunk(c.open(s2, high, pairLow))
	ch.high = high
	return ch, nil
}

// next reads a further page of an open window: first what remains of the
// stragglers, then the rows above the low bound. All of the former come before
// all of the latter, so one pos says how far both have come.
func (r *reader) next(ctx context.Context, c cursor, f filter) (chunk, error) {
	p := page{limit: r.rows, bytes: r.bytes}
	if xids := c.s1.endedBy(c.s2); c.last < c.low && len(xids) > 0 {
		rows, err := r.conn.Query(ctx, r.sql.old, r.rows, r.bytes, f.list(), f.only, xids, c.last, c.low)
		if err := p.collect(rows, err); err != nil {
			return chunk{}, err
		}
	}
	if !p.full() {
		rows, err := r.conn.Query(ctx, r.sql.fresh, r.rows-len(p.rows), r.bytes-int(p.total), f.list(), f.only,
			c.s1.text, c.s2.text, max(c.low, c.last), c.high)
		if err := p.collect(rows, err); err != nil {
			return chunk{}, err
		}
	}
	return p.chunk(c), nil
}

func (f filter) list() []string {
	if f.topics == nil {
		return []string{} // an empty array; null would select nothing
	}
	return f.topics
}

// page collects rows up to the limits that the statements were given.
type page struct {
	limit, bytes int
	rows         []row
	total        int64
}

// full: there may be more. Exactly enough rows count as full, which costs one
// more query that finds nothing.
func (p *page) full() bool { return len(p.rows) >= p.limit || p.total >= int64(p.bytes) }

func (p *page) chunk(during cursor) chunk {
	// The statements choose rows in order but promise none for their outermost
	// level, which joins; in practice nothing is left to sort.
	byPos := func(a, b row) int {
		switch {
		case a.Pos < b.Pos:
			return -1
		case a.Pos > b.Pos:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(p.rows, byPos) {
		slices.SortFunc(p.rows, byPos)
	}
	ch := chunk{rows: p.rows, during: during}
	if p.full() {
		ch.after = during.at(p.rows[len(p.rows)-1].Pos)
	} else {
		ch.after = during.finish()
	}
	return ch
}

func (p *page) collect(rows pgx.Rows, err error) error {
	if err != nil {
		return fmt.Errorf("relay: read the outbox: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := p.scan(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("relay: read the outbox: %w", err)
	}
	return nil
}

// scan reads one row, behind columns that the caller wants first. A row without
// a pos is a window without rows.
func (p *page) scan(rows pgx.Rows, first ...any) error {
	var (
		r                                  row
		pos, epoch, token, seq             *int64
		id                                 *[16]byte
		aggregatetype, typ, topic, key     *string
		kind, subject, source, contenttype *string
		headers                            *string
		history, prevEpoch, prevSeq        *int64
		created                            *time.Time
		weight                             *int64
		total                              *int64
	)
	err := rows.Scan(append(first, &pos, &id, &aggregatetype, &typ, &r.Payload, &topic, &key, &epoch, &token, &seq, &kind, &subject, &source, &contenttype, &headers,
		&history, &prevEpoch, &prevSeq, &created, &weight, &total)...)
	if err != nil {
		return fmt.Errorf("relay: read the outbox: %w", err)
	}
	if pos == nil {
		return nil
	}
	r.Pos, r.Epoch, r.Token, r.Seq = *pos, *epoch, *token, *seq
	r.ID = *id
	r.AggregateType, r.Type, r.Topic, r.Stream, r.Key, r.Kind = *aggregatetype, *typ, *topic, *topic, *key, outbox.Kind(*kind)
	r.Source, r.Subject, r.ContentType = *source, text(subject), text(contenttype)
	r.CreatedAt = *created
	if history != nil {
		r.History = *history
	}
	if prevEpoch != nil && prevSeq != nil {
		r.Prev = &outbox.Prev{Epoch: *prevEpoch, Seq: *prevSeq}
	}
	if headers != nil {
		if r.Headers, err = outbox.DecodeHeaders([]byte(*headers)); err != nil {
			return fmt.Errorf("relay: the headers of the event at pos %d are not a list of names and values: %.100s: %w", r.Pos, *headers, err)
		}
	}
	r.weight = int(*weight)
	p.total += *weight
	p.rows = append(p.rows, r)
	return nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
