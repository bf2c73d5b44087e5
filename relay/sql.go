package relay

import (
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
)

// names are the columns that become a record, in the order in which page.scan
// reads them.
const names = `pos, id, aggregatetype, type, payload, topic, key, shard, epoch, token, seq, kind, subject, source, contenttype, headers,
  history, prev_epoch, prev_seq, created_at, skip_from, skip_to, verdict_at`

// columns are the names and what the row weighs: an upper estimate of its size
// in a request to Kafka, 512 standing for the names and numbers of our own
// headers. octet_length of a large payload reads its length only, not the
// payload. The reader computes the same for itself: page.scan.
const columns = `pos, id, aggregatetype, type, payload, topic, key, shard::int as shard, epoch, token, seq, kind, subject, source, contenttype, headers::text as headers,
  history, prev_epoch, prev_seq, created_at, skip_from, skip_to, verdict_at,
  512 + 2 * octet_length(key) + octet_length(topic) + octet_length(type) + octet_length(source) + coalesce(octet_length(subject), 0)
    + coalesce(octet_length(contenttype), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(payload), 0) as weight`

// inFlow keeps the flows apart: the shards of $shards, a bit for each, and all
// topics but those of $topics, or only those. The comparison of two booleans is
// on purpose, and the bits are: as a plain condition on topic or shard it would
// draw the planner to an index on it, and so to sorting the window for each
// page.
const inFlow = `(topic = any ($topics::text[])) = $only::boolean and (1::bigint << shard) & $shards::bigint <> 0`

// cut ends a page where its weight reaches $bytes, with the row that reaches
// it. total rises with pos, so what remains is the beginning of the page. The
// rows behind are read by the database but neither detoasted nor sent.
const cut = `
select ` + names + ` from (
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
// The first row is about the window, those that follow are its rows: first the
// stragglers, at or below the low bound, then those above it, by primary key. The
// two sets can't overlap. high bounds the pages that follow if this one is full: no
// row that is visible here has a larger pos, since the sequence is read after the
// snapshot was taken. age() says how many transaction ids were given out from xmax
// on, see type bounds. The backend's pid goes along, so that a pooler that hands the
// session to another backend is seen at once.
//
// Under a steady trickle this statement is what a relay costs the database, and most
// of that is setting the plan up. So it has as few nodes as it can: no join, no sort,
// no running total (see lightRow), and no stragglers where there can't be any.
const pollSQL = `
select pg_backend_pid() as pid, coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0) as high, age(pg_snapshot_xmax(pg_current_snapshot())::xid) as given_out,
  pg_current_snapshot()::text as s2, ` + noRow + `
union all ` + pollOld + `
(select ` + noWindow + `, ` + lightRow + ` from @schema@.outbox
  where pos > $low::bigint and not pg_visible_in_snapshot(xid, $s1::pg_snapshot) and ` + inFlow + `
  order by pos limit $rows::bigint)`

// pollOld is left out by a poll without transactions whose rows can be stragglers.
const pollOld = `
(select ` + noWindow + `, r.* from unnest($xids::xid8[]) x cross join lateral (
  select ` + lightRow + ` from @schema@.outbox
   where (xid, pos) > (x, 0) and (xid, pos) <= (x, $low::bigint) and ` + inFlow + `
   order by xid, pos limit $rows::bigint) r order by r.pos limit $rows::bigint)
union all`

// noWindow and noRow stand for what a row of a poll is not about.
const (
	noWindow = `null::int, null::bigint, null::int, null::text`
	noRow    = `null::bigint as pos, null::uuid, null, null, null::bytea, null, null, null::int, null::bigint, null::bigint, null::bigint, null, null, null, null,
  null, null::bigint, null::bigint, null::bigint, null::timestamptz, null::bigint, null::bigint, null::timestamptz, null::boolean`
)

// pairSQL makes a pair (L, c) of the reader's own, in one transaction and in this
// order: whoever gets a transaction id after c has not drawn a position yet when L
// is read, since an append locks its fence, and has an id for it, before it draws
// one. It writes nothing, so its commit waits for no flush, and it is of use to
// this database session only: a pair that outlives it comes with a checkpoint.
var pairSQL = [...]string{
	"select coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0)",
	"select pg_current_xact_id()::text::bigint",
}

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

// lightRow is what page.scan reads of a row of a light page, which has no running
// total: that costs the database as much as all the rest, since it has to keep each
// row until its weight is known. What bounds the page is that a row beyond $small is
// sent without its payload and headers; the reader ends the page in front of it.
const lightRow = `pos, id, aggregatetype, type, case when octet_length(payload) <= $small::bigint then payload end, topic, key, shard::int, epoch, token, seq, kind, subject, source, contenttype,
  case when octet_length(headers::text) <= $small::bigint then headers::text end, history, prev_epoch, prev_seq, created_at, skip_from, skip_to, verdict_at,
  octet_length(payload) > $small::bigint or octet_length(headers::text) > $small::bigint as left_out`

// lightSQL is newSQL as a light page.
const lightSQL = `
select ` + lightRow + ` from @schema@.outbox
 where pos > $last::bigint and pos <= $high::bigint
   and pg_visible_in_snapshot(xid, $s2::pg_snapshot) and not pg_visible_in_snapshot(xid, $s1::pg_snapshot) and ` + inFlow + `
 order by pos limit $rows::bigint`

// loadCursorsSQL gives the newest cursor of each of the shards $1; those that
// share a row together.
const loadCursorsSQL = `
select newest.shards, c.n, c.s1::text, c.low, coalesce(c.s2::text, ''), coalesce(c.high, 0), coalesce(c.low2, 0), c.last_pos
  from (select array_agg(s order by s) as shards, n
          from (select s::int, max(n) as n from @schema@.relay_checkpoint cross join unnest(shards) s where s = any ($1::int[]) group by s) by_shard group by n) newest
  join @schema@.relay_checkpoint c on c.n = newest.n order by c.n`

const loadForksSQL = `select topic, coalesce(partition, -1), coalesce(partitions, 0), shards::int[], s1::text, low, coalesce(s2::text, ''), coalesce(high, 0), coalesce(low2, 0), last_pos,
			reason, detail, since from @schema@.relay_fork where shards && $1::smallint[] order by topic, partition nulls first, id`

// streamPage is a page of one stream, as far as it is visible in $in, from a
// place on: by index (topic, key, epoch, seq), which needs no sort; the sum keeps
// the planner from the primary key. What of it
// has a smaller pos than the place was published before the stream was held.
const streamPage = `
select ` + columns + ` from @schema@.outbox
 where topic = $topic::text and key = $key::text and (epoch, seq) >= ($epoch::bigint, $seq::bigint) and pos + 0 >= $last::bigint
   and pg_visible_in_snapshot(xid, $in::pg_snapshot)
 order by epoch, seq limit $rows::bigint`

// statements are the relay's, for one schema.
type statements struct {
	poll, pollFresh     string
	old, fresh          string
	pair                [len(pairSQL)]string
	light               string
	checkpoint          string
	newestXid, nextXid  string
	loadCursors         string
	loadPair            string
	meet, leave         string
	loadHeld, loadForks string
	// What is done for held streams and retired topics.
	stream, heldRequests, heldSettle, heldAuto string
	topicPin, topicJudge                       string
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
		poll:       x(pollSQL, "rows", "small", "topics", "only", "shards", "s1", "low", "xids"),
		pollFresh:  x(strings.Replace(pollSQL, pollOld, "", 1), "rows", "small", "topics", "only", "shards", "s1", "low"),
		old:        x(page(oldSQL, oldPage), "rows", "bytes", "topics", "only", "shards", "xids", "last", "low"),
		fresh:      x(page(newSQL, newPage), "rows", "bytes", "topics", "only", "shards", "s1", "s2", "last", "high"),
		pair:       [...]string{x(pairSQL[0]), x(pairSQL[1])},
		light:      x(lightSQL, "rows", "small", "topics", "only", "shards", "s1", "s2", "last", "high"),
		checkpoint: x(`select pair_low, generations from @schema@.relay_checkpoint($1, $2, $3, $4::jsonb, $5::jsonb, $6::jsonb, $7, $8)`),
		// The first must be read before the second: whoever has an xid by then has
		// one below the snapshot's xmax. By index, from its end.
		newestXid: x(`select coalesce(greatest((select xid::text::numeric from @schema@.outbox order by xid desc limit 1),
			(select max(pg_snapshot_xmax(s1)::text::numeric) - 1 from @schema@.relay_checkpoint)), 0)::bigint`),
		nextXid:     `select pg_snapshot_xmax(pg_current_snapshot())::text::bigint`,
		loadCursors: x(loadCursorsSQL),
		meet:        x(`select ids, free, soonest from @schema@.relay_meet($1, $2, $3, $4)`),
		leave:       x(`select @schema@.relay_leave($1)`),
		// Of any instance: what counts is that it was committed.
		loadPair:     x(`select coalesce(max(pair_low), 0), coalesce(array_agg(n) filter (where shards && $1::smallint[]), '{}') from @schema@.relay_checkpoint`),
		loadHeld:     x(`select topic, key, pos, epoch, seq, reason, detail, since from @schema@.relay_held order by topic, key`),
		loadForks:    x(loadForksSQL),
		stream:       x(page(strings.Replace(cut, "order by p.pos", "order by p.epoch, p.seq", 1), streamPage), "rows", "bytes", "topic", "key", "epoch", "seq", "last", "in"),
		heldRequests: x(`select topic, key, asked from @schema@.relay_held where state <> 'held'`),
		heldSettle:   x(`select @schema@.relay_held_settle($1, $2, $3, $4::jsonb)`),
		heldAuto:     x(`select @schema@.relay_held_auto($1, $2, $3)`),
		topicPin:     x(`select coalesce(partitions, 0), retired from @schema@.relay_topic_pin($1, $2::bigint::int)`),
		topicJudge:   x(`select @schema@.relay_topic_judge($1, $2)`),
	}
}
