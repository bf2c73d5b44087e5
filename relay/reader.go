package relay

import (
	"context"
	"fmt"

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
	sizes sizes
}

// filter says what a flow reads: which shards, and of them all topics but
// these, or only these.
type filter struct {
	shards shardSet
	topics []string
	only   bool
}

// row is an event as read, and its weight: an upper estimate of its size in a
// request.
type row struct {
	outbox.Record
	shard  int
	weight int
	// void: given up, and the marker of the row at seq markerAt says so; see skip.go.
	void     bool
	markerAt int64
	// bad says why the row can't be an event that append has written; empty
	// otherwise. Somebody has inserted or changed it by hand.
	bad string
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
	rows, err := queryBinary(ctx, r.conn, r.sql.poll, r.rows, r.bytes, f.list(), f.only, f.shards.mask(), xids, c.s1.text, c.low)
	if err != nil {
		return chunk{}, fmt.Errorf("relay: read the outbox: %w", err)
	}
	defer rows.Close()
	p := page{limit: r.rows, bytes: r.bytes}
	var pid uint32
	var high int64
	var text string
	for rows.Next() {
		f := fields{values: rows.RawValues()}
		pid, high = uint32(f.number()), f.number()
		if s2 := f.next(); s2 != nil {
			text = string(s2)
		}
		if err := p.scan(&f); err != nil {
			return chunk{}, err
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

// pair makes a pair of the session's own and gives its L: it has committed when
// this returns, so the snapshots of later statements are taken after it.
func (r *reader) pair(ctx context.Context) (low int64, err error) {
	b := &pgx.Batch{} // with one Sync, and so one transaction
	b.Queue(r.sql.pair[0]).QueryRow(func(row pgx.Row) error { return row.Scan(&low) })
	b.Queue(r.sql.pair[1])
	if err := r.conn.SendBatch(ctx, b).Close(); err != nil {
		return 0, fmt.Errorf("relay: move the low bound: %w", err)
	}
	return low, nil
}

// next reads a further page of an open window: first what remains of the
// stragglers, then the rows above the low bound. All of the former come before
// all of the latter, so one pos says how far both have come.
func (r *reader) next(ctx context.Context, c cursor, f filter) (chunk, error) {
	return r.upTo(ctx, c, f, r.rows, r.bytes)
}

// upTo is next with limits of its own.
func (r *reader) upTo(ctx context.Context, c cursor, f filter, most, bytes int) (chunk, error) {
	p := page{limit: most, bytes: bytes}
	if xids := c.s1.endedBy(c.s2); c.last < c.low && len(xids) > 0 {
		rows, err := queryBinary(ctx, r.conn, r.sql.old, most, bytes, f.list(), f.only, f.shards.mask(), xids, c.last, c.low)
		if err := p.collect(rows, err); err != nil {
			return chunk{}, err
		}
	}
	if !p.full() {
		sql, limit, bound := r.sql.fresh, most-len(p.rows), bytes-int(p.total)
		if len(p.rows) == 0 {
			if n, small, ok := r.sizes.light(most, bytes); ok {
				sql, limit, bound, p.limit, p.small = r.sql.light, n, small, n, small
			}
		}
		rows, err := queryBinary(ctx, r.conn, sql, limit, bound, f.list(), f.only, f.shards.mask(),
			c.s1.text, c.s2.text, max(c.low, c.last), c.high)
		if err := p.collect(rows, err); err != nil {
			return chunk{}, err
		}
		if p.short && len(p.rows) == 0 {
			// The first row is the one that was left out.
			r.sizes = sizes{}
			return r.upTo(ctx, c, f, most, bytes)
		}
	}
	r.sizes.learn(&p)
	return p.chunk(c), nil
}

func (f filter) list() []string {
	if f.topics == nil {
		return []string{} // an empty array; null would select nothing
	}
	return f.topics
}
