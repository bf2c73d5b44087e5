package relay

import (
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
)

// columns are what becomes a record, and what it weighs: an upper estimate of
// its size in a request to Kafka, 512 standing for the names and numbers of our
// own headers. octet_length of a large payload reads its length only, not the
// payload.
const columns = `pos, id, aggregatetype, type, payload, topic, key, epoch, token, seq, kind, subject, source, contenttype, headers::text as headers,
  history, prev_epoch, prev_seq, created_at,
  512 + 2 * octet_length(key) + octet_length(topic) + octet_length(type) + octet_length(source) + coalesce(octet_length(subject), 0)
    + coalesce(octet_length(contenttype), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(payload), 0) as weight`

// inFlow keeps the main flow and the forks apart: all topics but those of
// $topics, or only those. The comparison of two booleans is on purpose: as a
// plain condition on topic it would draw the planner to the index on topic,
// and so to sorting the window for each page.
const inFlow = `(topic = any ($topics::text[])) = $only::boolean`

// cut ends a page where its weight reaches $bytes, with the row that reaches
// it. total rises with pos, so what remains is the beginning of the page. The
// rows behind are read by the database but neither detoasted nor sent.
const cut = `
select c.* from (
  select p.*, sum(p.weight) over (order by p.pos rows between unbounded preceding and current row) as total from (@page@) p
) c where c.total - c.weight < $bytes::bigint`

// stragglers are rows of transactions that ran when s1 was taken, at or below
// the low bound. The row comparison fits index (xid, pos) and nothing else, so
// each transaction costs one descent and its rows, however large the table.
const stragglers = `
select r.* from unnest($xids::xid8[]) x cross join lateral (
  select ` + columns + ` from @schema@.outbox
   where (xid, pos) > (x, $last::bigint) and (xid, pos) <= (x, $low::bigint) and ` + inFlow + `
   order by xid, pos limit $rows::bigint) r`

// pollSQL is a whole window in one statement: the snapshot that the statement
// runs under is s2, and reports itself. Whatever it sees and s1 doesn't is the
// window. The tests on xid are pg_visible_in_snapshot only: a range on xid
// would draw the planner to the index on xid, and so to sorting the window.
//
// Rows at or below the low bound are stragglers, rows above it are read by
// primary key: the two sets can't overlap. high bounds the pages that follow if
// this one is full: no row that is visible here has a larger pos, since the
// sequence is read after the snapshot was taken.
//
// The backend's pid goes along, so that a pooler that hands the session to
// another backend is seen at once. s2 is only in the first row: with thousands
// of transactions it is long.
const pollSQL = `
select pg_backend_pid(), s.high, case when o.pos is null or o.total = o.weight then s.s2::text end, o.*
from (select pg_current_snapshot() as s2, coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0) as high) s
left join (` + cut + `) o on true`

const pollPage = `
select u.* from (
  (` + stragglers + `)
  union all
  (select ` + columns + ` from @schema@.outbox
    where pos > $low::bigint and not pg_visible_in_snapshot(xid, $s1::pg_snapshot) and ` + inFlow + `
    order by pos limit $rows::bigint)
) u order by u.pos limit $rows::bigint`

// oldSQL is a further page of stragglers. $xids are those of s1 that had ended
// in s2; what has ended since belongs to a later window.
const oldSQL = cut
const oldPage = stragglers + ` order by r.pos limit $rows::bigint`

// newSQL is a further page of the rows above the low bound.
const newSQL = cut
const newPage = `
select ` + columns + ` from @schema@.outbox
 where pos > $last::bigint and pos <= $high::bigint
   and pg_visible_in_snapshot(xid, $s2::pg_snapshot) and not pg_visible_in_snapshot(xid, $s1::pg_snapshot) and ` + inFlow + `
 order by pos limit $rows::bigint`

// statements are the relay's, for one schema.
type statements struct {
	poll, old, fresh    string
	checkpoint          string
	newestXid, nextXid  string
	loadCursor          string
	loadHeld, loadForks string
}

func newStatements(name string) statements {
	x := func(sql string, params ...string) string {
		for i, p := range params {
			sql = strings.ReplaceAll(sql, "$"+p+"::", "$"+string(rune('1'+i))+"::")
		}
		return schema.Expand(sql, name)
	}
	page := func(outer, inner string) string { return strings.Replace(outer, "@page@", inner, 1) }
	return statements{
		poll:  x(strings.ReplaceAll(page(pollSQL, pollPage), "$last::bigint", "0"), "rows", "bytes", "topics", "only", "xids", "s1", "low"),
		old:   x(page(oldSQL, oldPage), "rows", "bytes", "topics", "only", "xids", "last", "low"),
		fresh: x(page(newSQL, newPage), "rows", "bytes", "topics", "only", "s1", "s2", "last", "high"),
		checkpoint: x(`select pair_low from @schema@.relay_checkpoint($1, $2, $3, $4::text::pg_snapshot, $5, $6::text::pg_snapshot, $7, $8, $9,
			$10::jsonb, $11::jsonb, $12::text[], $13)`),
		// The first must be read before the second: whoever has an xid by then has
		// one below the snapshot's xmax. By index, from its end.
		newestXid: x(`select coalesce(greatest((select xid::text::numeric from @schema@.outbox order by xid desc limit 1),
			(select pg_snapshot_xmax(s1)::text::numeric - 1 from @schema@.relay_checkpoint order by n desc limit 1)), 0)::bigint`),
		nextXid: `select pg_snapshot_xmax(pg_current_snapshot())::text::bigint`,
		loadCursor: x(`select s1::text, low, coalesce(s2::text, ''), coalesce(high, 0), coalesce(low2, 0), last_pos, pair_low
			from @schema@.relay_checkpoint order by n desc limit 1`),
		loadHeld: x(`select topic, key, pos, epoch, seq, reason, detail, since from @schema@.relay_held order by topic, key`),
		loadForks: x(`select topic, s1::text, low, coalesce(s2::text, ''), coalesce(high, 0), coalesce(low2, 0), last_pos, reason, detail, since
			from @schema@.relay_fork order by topic`),
	}
}
