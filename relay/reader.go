package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// reader reads windows, page by page, on a connection of its own. Where to read is in
// the cursor; what the reader remembers makes its reads cheaper.
type reader struct {
	conn  *pgx.Conn
	sql   *statements
	pid   uint32
	rows  int // the largest number of rows in a page
	bytes int // the weight at which a page is cut
	sizes sizes

	bounds  bounds
	options []any // of its queries; nil: not looked up yet
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
	// Of a read that took a new snapshot: the sequence's value, and the low bound of
	// the window that will start there, which holds for all later ones.
	high  int64
	bound bound
}

// pollRows is the largest number of rows in the first page of a window. It is low, so
// that rows of a usual size can be told apart from large ones without knowing any: a
// page holds so many of four times the page's share.
const pollRows = 128

// poll opens a window at a boundary, and reads its first page. b is a bound that held
// before this call: one of a pair that was committed, or of an earlier poll.
//
// It is one statement because s2 must be the snapshot that the rows were read
// under: between two statements a transaction could commit that the second one
// sees and s2 doesn't contain, or the other way round.
func (r *reader) poll(ctx context.Context, c cursor, f filter, b bound) (chunk, error) {
	rows := min(r.rows, pollRows)
	p := page{limit: rows, bytes: r.bytes, small: max(1, 4*r.bytes/rows)}
	sql, args := r.sql.pollFresh, []any{p.limit, p.small, f.list(), f.only, f.shards.mask(), c.s1.text, c.low}
	if xids := c.late(c.s1.xip); len(xids) > 0 {
		sql, args = r.sql.poll, append(args, xids)
	}
	var pid uint32
	var high, given int64
	var text string
	found, err := r.query(ctx, sql, args...)
	err = p.collect(found, err, func(f *fields) bool {
		if f.null() { // an event's row
			f.skip(4)
			return true
		}
		pid, high, given, text = uint32(f.number()), f.number(), f.number(), string(f.next())
		return false
	})
	if err != nil {
		return chunk{}, err
	}
	if pid != r.pid {
		return chunk{}, &PoolerError{Reason: fmt.Sprintf("the reader's session moved from backend %d to backend %d", r.pid, pid)}
	}
	s2, err := parseSnapshot(text)
	if err != nil {
		return chunk{}, err
	}
	r.sizes.learn(&p)
	b = b.better(r.bounds.at(s2, s2.xmax+uint64(given), high))
	ch := p.chunk(c.open(s2, high, b))
	ch.high, ch.bound = high, b
	return ch, nil
}

// pair makes a bound by a pair of the session's own, for where those of polls don't
// come to hold: while one transaction has the youngest id and draws positions all
// along, polls would walk over its rows. It has committed when this returns, so the
// snapshots of later statements are taken after it.
func (r *reader) pair(ctx context.Context) (b bound, err error) {
	batch := &pgx.Batch{} // with one Sync, and so one transaction
	batch.Queue(r.sql.pair[0]).QueryRow(func(row pgx.Row) error { return row.Scan(&b.low) })
	batch.Queue(r.sql.pair[1]).QueryRow(func(row pgx.Row) error { return row.Scan(&b.young) })
	if err := r.conn.SendBatch(ctx, batch).Close(); err != nil {
		return bound{}, fmt.Errorf("relay: move the low bound: %w", err)
	}
	return b, nil
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
	if xids := c.late(c.s1.endedBy(c.s2)); c.last < c.low && len(xids) > 0 {
		rows, err := r.query(ctx, r.sql.old, most, bytes, f.list(), f.only, f.shards.mask(), xids, c.last, c.low)
		if err := p.collect(rows, err, nil); err != nil {
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
		rows, err := r.query(ctx, sql, limit, bound, f.list(), f.only, f.shards.mask(),
			c.s1.text, c.s2.text, max(c.low, c.last), c.high)
		if err := p.collect(rows, err, nil); err != nil {
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
