package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/schema"
)

// Grade says how grave a finding is.
type Grade string

// The grades.
const (
	// Good: as it must be.
	Good Grade = "ok"
	// Worth: it works, and an operator should know.
	Worth Grade = "warning"
	// Bad: something does not work, or a promise doesn't hold.
	Bad Grade = "problem"
)

// Finding is one thing that [Examine] has looked at.
type Finding struct {
	// About is what: "schema", "topic quakes".
	About string
	Grade Grade
	// Text says how it is, Remedy what to do about it; empty if nothing.
	Text, Remedy string
}

// Examine looks at everything that a relay rests on: database, schema, rights,
// settings, history, the outbox and its open transactions, and with a publisher
// the topics. It changes nothing, and never stops at the first problem; what
// can't be looked at because of another problem is left out. Topics that events
// were ever appended to are found by themselves; topics names further ones.
//
// With the role fenceline_monitor everything about the database can be seen.
// cfg says what the relay will be run with.
func Examine(ctx context.Context, pool *pgxpool.Pool, publisher Publisher, topics []string, cfg Config) []Finding {
	e := &exam{ctx: ctx, pool: pool, cfg: cfg.withDefaults()}
	if err := cfg.Validate(); err != nil {
		e.bad("configuration", err.Error(), "")
		return e.findings
	}
	var known []string // nil: it isn't known which there are
	if e.schema() {
		e.settings()
		e.history()
		e.rights()
		e.direct()
		e.clock()
		e.outbox()
		e.blockers()
		e.paused()
		known = e.topics()
	}
	if publisher != nil {
		e.kafka(publisher, known, topics)
	}
	return e.findings
}

type exam struct {
	ctx      context.Context
	pool     *pgxpool.Pool
	cfg      Config
	findings []Finding
}

func (e *exam) add(about string, g Grade, text, remedy string) {
	e.findings = append(e.findings, Finding{about, g, text, remedy})
}
func (e *exam) good(about, format string, args ...any) {
	e.add(about, Good, fmt.Sprintf(format, args...), "")
}
func (e *exam) bad(about, text, remedy string)   { e.add(about, Bad, text, remedy) }
func (e *exam) worth(about, text, remedy string) { e.add(about, Worth, text, remedy) }

func (e *exam) query(about, sql string, args []any, dest ...any) bool {
	err := e.pool.QueryRow(e.ctx, schema.Expand(sql, e.cfg.Schema), args...).Scan(dest...)
	if err != nil {
		e.bad(about, "can't be looked at: "+err.Error(), "")
	}
	return err == nil
}

func (e *exam) schema() bool {
	var version string
	if !e.query("database", "select current_setting('server_version')", nil, &version) {
		return false
	}
	e.good("database", "PostgreSQL %s", version)
	err := schema.Check(e.ctx, e.pool, e.cfg.Schema, schema.Producer)
	var access *schema.AccessError
	if errors.As(err, &access) { // as "relay status" says it: to look, no more is needed
		e.bad("schema", fmt.Sprintf("user %q may not use schema %q", access.User, access.Schema), e.toLook(access.User))
		return false
	}
	if err != nil {
		e.bad("schema", err.Error(), "")
		return false
	}
	e.good("schema", "%q is at migration %d, as this program needs it", e.cfg.Schema, schema.Level(schema.Producer))
	return true
}

func (e *exam) settings() {
	err := dbcheck.Check(e.ctx, e.pool, e.cfg.Schema, true)
	var p *dbcheck.Problem
	switch {
	case errors.As(err, &p):
		e.bad("settings", fmt.Sprintf("%s is %s", p.Name, p.Have), p.Remedy)
	case err != nil:
		e.bad("settings", "can't be looked at: "+err.Error(), "")
	default:
		e.good("settings", "the server keeps what it acknowledges, and the tables are as they must be")
	}
}

// sameHistorySQL is the same comparison as the gate's, which only its functions may
// make in full; this is what a monitor or a relay can see of it.
const sameHistorySQL = `select h.database_oid = d.oid and h.self_oid = h.tableoid and h.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
	and h.system_identifier = (pg_control_system()).system_identifier from @schema@.history h, pg_database d where d.datname = current_database()`

func (e *exam) history() {
	var same bool
	if !e.query("history", sameHistorySQL, nil, &same) {
		return
	}
	if !same {
		e.bad("history", "this database was restored, promoted or copied: nothing commits, and nothing is published", `"relay history show" tells what has changed; "relay history confirm" if nothing can have been lost, else "relay history bump"`)
		return
	}
	e.good("history", "this is the database in which the fences were issued")
}

func (e *exam) rights() {
	var user string
	var relay, monitor bool
	if !e.query("rights", "select current_user::text, pg_has_role(current_user, $1, 'USAGE'), pg_has_role(current_user, $2, 'USAGE') or pg_has_role(current_user, $3, 'USAGE')",
		[]any{schema.Role(e.cfg.Schema, schema.KindRelay), schema.Role(e.cfg.Schema, schema.KindMonitor), schema.Role(e.cfg.Schema, schema.KindOperator)}, &user, &relay, &monitor) {
		return
	}
	switch {
	case relay:
		e.good("rights", "login %q has the relay's role", user)
	case monitor:
		e.worth("rights", fmt.Sprintf("login %q has the role of a monitor or operator and not the relay's", user), "enough to look; \"relay run\" needs a login with "+schema.Role(e.cfg.Schema, schema.KindRelay))
	default:
		e.bad("rights", fmt.Sprintf("login %q has neither the relay's role nor a monitor's or an operator's", user), e.toLook(user))
	}
}

// toLook says what a login needs to see everything, and what to publish.
func (e *exam) toLook(user string) string {
	return fmt.Sprintf("to look, grant %s to %[3]s; to publish, %[2]s", schema.Quote(schema.Role(e.cfg.Schema, schema.KindMonitor)), schema.Quote(schema.Role(e.cfg.Schema, schema.KindRelay)), schema.Quote(user))
}

func (e *exam) direct() {
	// As a session does it: each is out of the pool at once, so that a pool of
	// one connection is no pool in which this one waits for itself.
	a, err := dial(e.ctx, e.pool, doctorSettings)
	if err == nil {
		defer hangUp(a)
		b, second := dial(e.ctx, e.pool, doctorSettings)
		if err = second; err == nil {
			defer hangUp(b)
			if _, err = pinned(e.ctx, a, b); err == nil {
				err = oneServer(e.ctx, a, b)
			}
		}
	}
	var pooler *PoolerError
	switch {
	case errors.As(err, &pooler):
		e.bad("connection", "a connection pooler is in the way: "+pooler.Reason, "connect the relay to PostgreSQL directly, or to the pooler in session mode")
	case err != nil:
		e.bad("connection", "can't be looked at: "+err.Error(), "")
	default:
		e.good("connection", "direct")
	}
}

// clock: nothing rests on the relay's clock but what it tells of ages.
func (e *exam) clock() {
	before := time.Now()
	var there time.Time
	if !e.query("clock", "select clock_timestamp()", nil, &there) {
		return
	}
	took := time.Since(before)
	off := there.Sub(before.Add(took / 2))
	if off.Abs() > 5*time.Second+took {
		e.worth("clock", fmt.Sprintf("the database's clock and this machine's differ by %v", off.Round(time.Second)), "ages in logs and metrics are off by as much; leases are not, they go by the database's clock alone. Synchronise the clocks")
		return
	}
	e.good("clock", "within %v of the database's", (off.Abs() + took).Round(time.Millisecond))
}

func (e *exam) outbox() {
	o, err := ReadOutbox(e.ctx, e.pool, e.cfg.Schema)
	if err != nil {
		e.bad("outbox", err.Error(), "")
		return
	}
	var spare bool
	if e.query("outbox", "select exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '@schema_name@.outbox'::regclass and pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT')", nil, &spare) && spare {
		e.bad("outbox", "it has a DEFAULT partition, which keeps others from being attached", "detach it, and move its rows into the partitions of their positions")
	}
	if o.Runway < 1<<32 {
		e.bad("outbox", "only "+count(int(o.Runway), "more event")+" can be appended", `run "relay retention", which creates the next partition; if that fails, its error says why`)
	}
	overdue := 0
	for _, p := range o.Partitions {
		if e.cfg.Retention != nil && !p.Active && !p.Last.IsZero() && o.Now.Sub(p.Last) > e.cfg.Retention.withDefaults().Keep+time.Hour {
			overdue++
			e.worth("partition "+p.Name, fmt.Sprintf("its last event is %v old and it is still there: %s", o.Now.Sub(p.Last).Round(time.Second), keptWords(p.Kept)), overdueRemedies[p.Kept])
		}
	}
	if o.Runway >= 1<<32 && !spare && overdue == 0 {
		e.good("outbox", "%s, %d MB", count(len(o.Partitions), "partition"), o.Bytes>>20)
	}
}

func keptWords(kept string) string {
	if kept == "" {
		return "no relay with a retention runs"
	}
	return kept
}

func (e *exam) blockers() {
	blockers, err := ReadBlockers(e.ctx, e.pool, e.cfg.Schema, time.Minute)
	if err != nil {
		e.bad("transactions", err.Error(), "")
		return
	}
	for _, b := range blockers {
		e.worth("transactions", b.String(), "end it if nobody needs it: select pg_terminate_backend(pid), or rollback prepared 'name'")
	}
	if len(blockers) == 0 {
		e.good("transactions", "none that has written to the outbox has been open for a minute")
	}
}

// String says in words which transaction it is.
func (b Blocker) String() string {
	if b.GID != "" {
		return fmt.Sprintf("a prepared transaction %q of %s has been waiting for %v", b.GID, b.User, b.Open.Round(time.Second))
	}
	if b.Open == 0 {
		return fmt.Sprintf("pid %d of %s has written to the outbox and is open (pg_read_all_stats shows for how long)", b.PID, b.User)
	}
	return fmt.Sprintf("pid %d of %s (%s, %s) has written to the outbox and has been open for %v", b.PID, b.User, b.Application, b.State, b.Open.Round(time.Second))
}

func (e *exam) paused() {
	p, err := ReadPause(e.ctx, e.pool, e.cfg.Schema)
	switch {
	case err != nil:
		e.bad("pause", err.Error(), "")
	case p.Paused:
		e.worth("pause", p.sentence(), `"relay resume" ends it`)
	default:
		e.good("pause", "the relays may publish")
	}
}

// topicLimit bounds how many topics are looked at.
const topicLimit = 1000

// topics are those that events were ever appended to; nil if that can't be seen.
func (e *exam) topics() []string {
	known := []string{}
	// By the index: one look for each topic, however many streams there are.
	if !e.query("topics", `with recursive t(topic) as (
		(select topic from @schema@.head order by topic limit 1)
		union all select (select h.topic from @schema@.head h where h.topic > t.topic order by h.topic limit 1) from t where t.topic is not null)
		select coalesce(array_agg(topic), '{}') from (select topic from t where topic is not null limit $1) u`, []any{topicLimit + 1}, &known) {
		return nil
	}
	if len(known) > topicLimit {
		known = known[:topicLimit]
		e.worth("topics", fmt.Sprintf("there are more than %d, and only the first ones are looked at", topicLimit), "name others with -topics")
	}
	return known
}

func (e *exam) kafka(publisher Publisher, known, named []string) {
	topics := slices.Concat(known, named)
	slices.Sort(topics)
	topics = slices.Compact(topics)
	switch {
	case known == nil:
		e.worth("topics", "to which ones events were appended can't be seen, so only those that were named are looked at", "mend what keeps the database from being looked at, or name the topics with -topics")
	case len(topics) == 0:
		e.worth("topics", "there are no events yet, so no topic is known", "name the topics to look at with -topics")
	}
	unanswered, left := map[string][]string{}, 0 // topics by the reason; how many were not asked about
look:
	for i, name := range topics {
		about := "topic " + name
		var pinned int
		var retired bool
		if known != nil { // else there is no schema to ask
			var err error
			if pinned, retired, err = e.pin(name); err != nil {
				e.bad(about, "what the relay has noted about it can't be looked at: "+err.Error(), "")
				continue
			}
		}
		if retired {
			e.worth(about, "it is retired: what is appended to it is given up", "stop appending to it, or take it back with \"relay topic accept\"")
			continue
		}
		topic, err := publisher.Describe(e.ctx, name)
		if err == nil {
			if refusal := unfit(topic, pinned, e.cfg.MaxRecordBytes); refusal != nil {
				err = refusal
			}
		}
		var refused *TopicError
		var silent *NoAnswerError
		switch {
		case errors.As(err, &refused):
			e.bad(about, refused.Reason, "")
		case errors.As(err, &silent):
			unanswered[silent.Reason] = append(unanswered[silent.Reason], name)
			if len(unanswered[silent.Reason]) > 1 {
				// It isn't the topic: each of the others would wait for the same.
				left = len(topics) - i - 1
				break look
			}
		case err != nil:
			e.bad(about, "can't be looked at: "+err.Error(), "see that the brokers are up, and that this login may describe the topic and its configuration")
		default:
			e.good(about, "%s, max.message.bytes %d", count(topic.Partitions, "partition"), topic.MaxMessageBytes)
			e.writable(publisher, about, name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(unanswered)) {
		names, others := unanswered[reason], ""
		if len(names) > 1 && left > 0 {
			others = "; nor " + count(left, "further topic")
		}
		e.bad("topic "+strings.Join(names, ", topic "), "can't be looked at: "+reason+others, unansweredRemedy)
	}
}

// unansweredRemedy: the addresses to begin with may answer, and those that they
// send a client on to not.
const unansweredRemedy = "see that the brokers are up, that the addresses which they advertise can be reached from here, and that TLS and SASL settings fit all of them"

// writable: a broker that would refuse what is sent does so when an event waits,
// which is late. Publishers that can ask for rights are asked.
func (e *exam) writable(publisher Publisher, about, name string) {
	asker, can := publisher.(Rights)
	may, known, err := false, false, error(nil)
	if can {
		may, known, err = asker.MayWrite(e.ctx, name)
	}
	switch {
	case err != nil:
		e.worth(about, "whether this login may write to it could not be asked: "+err.Error(), "see that the login of \"relay run\" has the right to Write to it")
	case !known:
		e.worth(about, "whether this login may write to it was not checked: the broker doesn't tell", "see that the login of \"relay run\" has the right to Write to it; the first event shows it")
	case !may:
		e.bad(about, "this login may not write to it", "grant it Write on the topic, if it is the login of \"relay run\"")
	default:
		e.good(about, "this login may write to it")
	}
}

// pin is the partition count with which the relay has begun to write to a topic,
// 0 if it hasn't.
func (e *exam) pin(topic string) (partitions int, retired bool, err error) {
	err = e.pool.QueryRow(e.ctx, schema.Expand("select partitions, retired_at is not null from @schema@.relay_topic where topic = $1", e.cfg.Schema), topic).Scan(&partitions, &retired)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return partitions, retired, err
}
