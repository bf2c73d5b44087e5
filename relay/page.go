package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// binaryFormat asks for all columns in the binary format, which fields reads.
var binaryFormat = pgx.QueryResultFormats{pgx.BinaryFormatCode}

// binaryOptions have a connection's queries give what fields reads. A login that chose
// a mode in which pgx knows no columns before they come gets text in it, whatever is
// asked for; for these statements the columns are described first, which leaves nothing
// behind in the session either.
func binaryOptions(conn *pgx.Conn) []any {
	switch conn.Config().DefaultQueryExecMode { // a copy of all of it: not for each query
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return []any{binaryFormat, pgx.QueryExecModeCacheDescribe}
	}
	return []any{binaryFormat}
}

// queryBinary queries for what fields reads.
func queryBinary(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (pgx.Rows, error) {
	return conn.Query(ctx, sql, slices.Concat(binaryOptions(conn), args)...)
}

// query is queryBinary of the reader's connection, some hundred times a second.
func (r *reader) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if r.options == nil {
		r.options = binaryOptions(r.conn)
	}
	return r.conn.Query(ctx, sql, slices.Concat(r.options, args)...)
}

// page collects rows up to the limits that the statements were given.
type page struct {
	limit, bytes int
	small        int // not zero: what is larger comes without its content, and ends the page
	rows         []row
	total        int64
	largest      int   // the largest payload, or headers, of a row
	short        bool  // ended before the statement's limits: there is more
	last         int64 // the largest pos
	words        words
}

// firstRows is the number of rows for which a page makes room at first, as many as a
// look finds under a trickle.
const firstRows = 4

// full: there may be more. Exactly enough rows count as full, which costs one
// more query that finds nothing.
func (p *page) full() bool {
	return p.short || len(p.rows) >= p.limit || p.total >= int64(p.bytes)
}

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
	switch n := len(p.rows); {
	case !p.full():
		ch.after = during.finish()
	case n > 0:
		ch.after = during.at(p.rows[n-1].Pos)
	default: // the first row is one that was left out
		ch.after = during
	}
	return ch
}

// collect reads a statement's rows. about, if not nil, takes the columns in front of
// an event's, and says whether the row has an event.
func (p *page) collect(rows pgx.Rows, err error, about func(*fields) bool) error {
	if err != nil {
		return fmt.Errorf("relay: read the outbox: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		f := fields{values: rows.RawValues()}
		if about != nil && !about(&f) {
			continue
		}
		if p.short || p.small != 0 && p.full() {
			// What this statement sends beyond the page is read again. A row that
			// belongs into the page would be passed over: no statement is known to send
			// one so late, but the parts of a poll have an order by habit only.
			p.short = true
			if len(f.values) > 0 && toInt(f.values[0]) < p.last {
				p.rows, p.total = nil, 0
			}
			continue
		}
		if err := p.scan(&f); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("relay: read the outbox: %w", err)
	}
	return nil
}

// scan reads one row. The order is that of names. A row without a pos is a
// window without rows.
//
// A backlog is millions of rows, and this is what each of them costs the one
// goroutine that reads: columns are taken as they came, words that repeat are
// shared, and nothing is allocated but the payload and one text.
func (p *page) scan(f *fields) error {
	pos := f.next()
	if pos == nil {
		return nil
	}
	switch len(p.rows) { // most pages have few rows, or all they can have
	case 0:
		p.rows = make([]row, 0, min(p.limit, firstRows))
	case firstRows:
		p.rows = slices.Grow(p.rows, min(p.limit, 4096))
	}
	var r row
	r.Pos = toInt(pos)
	copy(r.ID[:], f.next())
	r.AggregateType, r.Type = p.words.get(f.next()), p.words.get(f.next())
	payload := f.next()
	r.Topic = p.words.get(f.next())
	r.Stream = r.Topic
	key := f.next()
	r.shard = int(f.number())
	r.Epoch, r.Token, r.Seq = f.number(), f.number(), f.number()
	r.Kind = outbox.Kind(p.words.get(f.next()))
	subject := f.next()
	r.Source, r.ContentType = p.words.get(f.next()), p.words.get(f.next())
	headers := f.next()
	r.History = f.number()
	prevEpoch, prevSeq := f.next(), f.next()
	r.CreatedAt = f.time()
	skipFrom, skipTo, verdictAt := f.number(), f.number(), f.time()
	if p.small != 0 {
		if out := f.next(); len(out) == 1 && out[0] != 0 {
			p.short = true
			if r.Pos < p.last { // see collect
				p.rows, p.total = nil, 0
			}
			return nil
		}
	}
	if f.bad != nil {
		return fmt.Errorf("relay: read the outbox: the row at pos %d: %w", r.Pos, f.bad)
	}

	r.weight = 512 + 2*len(key) + len(r.Topic) + len(r.Type) + len(r.Source) + len(subject) + len(r.ContentType) + len(headers) + len(payload)
	if payload != nil { // an empty one is not a tombstone
		r.Payload = make([]byte, len(payload))
		copy(r.Payload, payload)
	}
	r.Key, r.Subject = two(key, subject)
	if prevEpoch != nil && prevSeq != nil {
		r.Prev = &outbox.Prev{Epoch: toInt(prevEpoch), Seq: toInt(prevSeq)}
	}
	if headers != nil {
		var err error
		if r.Headers, err = outbox.DecodeHeaders(headers); err != nil {
			r.bad = fmt.Sprintf("its headers are not a list of names and values: %.100s: %v", headers, err)
		}
	}
	if r.bad == "" {
		r.bad = r.oddity()
	}
	r.judge(skipFrom, skipTo, verdictAt)
	p.total += int64(r.weight)
	p.largest = max(p.largest, len(payload), len(headers))
	p.last = max(p.last, r.Pos)
	p.rows = append(p.rows, r)
	return nil
}

// two makes two strings with one allocation.
func two(a, b []byte) (string, string) {
	if len(b) == 0 {
		return string(a), ""
	}
	var buf [256]byte
	both := string(append(append(buf[:0], a...), b...))
	return both[:len(a)], both[len(a):]
}

// words are texts that repeat from row to row.
type words map[string]string

// get never keeps more than a few: whoever has thousands of types pays for them.
func (w *words) get(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	if s, ok := (*w)[string(raw)]; ok {
		return s
	}
	if *w == nil || len(*w) > 1000 {
		*w = words{}
	}
	s := string(raw)
	(*w)[s] = s
	return s
}

// fields reads a row's columns one after the other, in the binary format. What
// it gives is valid until the next row is read.
type fields struct {
	values [][]byte
	bad    error
}

var errColumns = errors.New("a column is missing, or has another type than this relay knows: are schema and relay of the same version?")

// next gives the next column; nil is null.
func (f *fields) next() []byte {
	if len(f.values) == 0 {
		f.bad = errColumns
		return nil
	}
	v := f.values[0]
	f.values = f.values[1:]
	return v
}

// null: the next column is null, or there is none.
func (f *fields) null() bool { return len(f.values) == 0 || f.values[0] == nil }

// skip leaves n columns out.
func (f *fields) skip(n int) { f.values = f.values[min(n, len(f.values)):] }

// number reads an integer; 0 stands for null.
func (f *fields) number() int64 {
	v := f.next()
	if v != nil && len(v) != 4 && len(v) != 8 {
		f.bad = errColumns
		return 0
	}
	return toInt(v)
}

func toInt(v []byte) int64 {
	switch len(v) {
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v)))
	case 8:
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

const (
	year2000 = 946_684_800 // from when PostgreSQL counts microseconds, in Unix time
	// Its last and first moments. "infinity", which somebody may have written
	// by hand, becomes one of them: the broker will say what it thinks of it.
	lastMoment  = 9_223_371_331_199_999_999 // 294276-12-31
	firstMoment = -211_813_488_000_000_000  // 4714-11-24 BC
)

func (f *fields) time() time.Time {
	us := min(max(f.number(), firstMoment), lastMoment)
	return time.Unix(year2000+us/1e6, us%1e6*1000).UTC()
}

// sizes decides when a page can be read without the running total.
type sizes struct {
	average int // the weight of the last page's rows; zero: nothing known
	largest int
}

func (s *sizes) learn(p *page) {
	switch n := len(p.rows); {
	case p.short && p.small != 0 && p.total < int64(p.bytes):
		*s = sizes{} // a row was left out, and is the next one
	case n > 0:
		s.average, s.largest = int(p.total)/n, p.largest
	}
}

// light gives the limits of a page without a running total: how many rows, and
// what is too large for it. ok is false where rows differ so much that many
// would be left out. The statement sends at most four times the page's bytes,
// beside the columns that are short by nature.
func (s *sizes) light(rows, bytes int) (n, small int, ok bool) {
	if s.average == 0 {
		return 0, 0, false
	}
	n = min(rows, max(1, bytes/s.average))
	small = max(4*s.average, bytes/rows)
	return n, small, s.largest <= small
}
