package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/relay"
)

// late is the age from which a waiting event is worth a word: a relay that
// works publishes within a second.
const late = time.Minute

func status(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		postgres config.Postgres
		asJSON   bool
	)
	s := config.New("relay status", "Prints what waits to be published, who publishes it, and what stands in the way, each with what to do. "+
		"It asks the database only, so it needs neither Kafka nor a running relay; a login with the role <schema>_monitor is enough. "+
		"It exits with 0 whatever it finds, with 1 if database or schema can't be used.")
	postgres.Register(s)
	s.Bool(&asJSON, "json", "", "print one JSON object, ages in seconds")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, "relay status")
	if err != nil {
		return err
	}
	defer pool.Close()
	st, err := relay.ReadStatus(ctx, pool, postgres.Schema)
	if err != nil {
		return config.NeedsRole(err, postgres.Schema, schema.KindMonitor)
	}
	r := newStatusReport(postgres.Schema, st)
	if err := r.around(ctx, pool, postgres.Schema); err != nil {
		return config.NeedsRole(err, postgres.Schema, schema.KindMonitor)
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(r)
	}
	_, err = io.WriteString(stdout, r.text())
	return err
}

// statusReport is what "relay status" prints. Its JSON names are relied on by
// scripts: add some, change none.
type statusReport struct {
	Schema  string        `json:"schema"`
	Now     time.Time     `json:"now"`
	Active  *activeRelay  `json:"active"` // null: no instance holds the lease
	Backlog waiting       `json:"backlog"`
	Cursor  *storedCursor `json:"cursor"` // null: nothing was published yet
	Held    []heldStream  `json:"held_streams"`
	Refused []refused     `json:"refused_topics"`
	ToDo    []string      `json:"to_do"`

	Instances []instance    `json:"instances"`
	Unowned   []int         `json:"unowned_shards"`
	Pause     *pauseState   `json:"pause"` // null: not paused
	Outbox    outboxState   `json:"outbox"`
	Blockers  []blocker     `json:"open_transactions"`
	History   historyAnswer `json:"history"`
}

type activeRelay struct {
	Instance     string    `json:"instance"`
	Epoch        int64     `json:"epoch"`
	Token        int64     `json:"token"`
	LeaseExpires time.Time `json:"lease_expires"`
}

type waiting struct {
	Events    int64   `json:"events"`
	AtLeast   bool    `json:"at_least"` // counting stopped there
	OldestAge float64 `json:"oldest_age_seconds"`
}

type storedCursor struct {
	Age float64 `json:"age_seconds"`
}

type heldStream struct {
	Topic  string    `json:"topic"`
	Key    string    `json:"key"`
	Epoch  int64     `json:"epoch"`
	Seq    int64     `json:"seq"`
	Pos    int64     `json:"pos"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	Detail string    `json:"detail"`
	ToDo   string    `json:"to_do"`

	State   string     `json:"state"` // held, retry or skip
	AskedBy string     `json:"asked_by"`
	AskedAt *time.Time `json:"asked_at"`
}

type refused struct {
	Topic   string    `json:"topic"`
	Since   time.Time `json:"since"`
	Events  int64     `json:"events"`
	AtLeast bool      `json:"at_least"`
	Reason  string    `json:"reason"`
	Detail  string    `json:"detail"`
	ToDo    string    `json:"to_do"`

	Partition int  `json:"partition"` // -1: the whole topic
	Retired   bool `json:"retired"`
	Unasked   bool `json:"unasked"` // nobody has refused it yet
}

func newStatusReport(name string, st relay.Status) statusReport {
	r := statusReport{
		Schema: name, Now: st.Now.UTC(),
		Backlog: waiting{st.Backlog, st.More, st.Oldest.Seconds()},
		Held:    []heldStream{}, Refused: []refused{}, ToDo: []string{},
		Instances: []instance{}, Unowned: st.Unowned, Blockers: []blocker{},
	}
	if r.Unowned == nil {
		r.Unowned = []int{}
	}
	for _, i := range st.Instances {
		r.Instances = append(r.Instances, instance{i.Name, i.Started.UTC(), i.Expires.UTC(), append([]int{}, i.Shards...)})
	}
	if st.Holder != "" {
		r.Active = &activeRelay{atWork(st), st.Epoch, st.Token, st.LeaseExpires.UTC()}
	}
	if st.Published {
		r.Cursor = &storedCursor{st.CursorAge.Seconds()}
	}
	for _, h := range st.Held {
		r.Held = append(r.Held, heldStream{h.Topic, h.Key, h.Epoch, h.Seq, h.Pos, h.Since.UTC(), h.Reason, h.Detail, heldToDo(h), string(h.State), h.AskedBy, maybe(h.AskedAt)})
	}
	for _, f := range st.Forks {
		todo := "mend what the reason names; the relay asks the broker again every few seconds and goes on by itself"
		switch {
		case f.Retired:
			todo = "nothing: the topic is retired, and a relay that is active gives what waits its verdict"
		case f.Unasked:
			todo = "nothing: it is no refusal; the next relay that is active asks the broker, and goes on"
		}
		r.Refused = append(r.Refused, refused{f.Topic, f.Since.UTC(), f.Backlog, f.More, f.Reason, f.Detail, todo, f.Partition, f.Retired, f.Unasked})
	}
	if st.Holder == "" && slices.ContainsFunc(st.Held, func(h relay.HeldInfo) bool { return h.State != relay.StateHeld }) {
		r.ToDo = append(r.ToDo, "held streams are to be resumed and no relay is active: start one with \"relay run\"")
	}
	if st.Holder == "" && st.Backlog > 0 {
		r.ToDo = append(r.ToDo, "events wait and no relay is active: start one with \"relay run\"; if one runs, its log says what keeps it")
	}
	if st.Holder != "" && st.Oldest > late && len(st.Forks) == 0 {
		r.ToDo = append(r.ToDo, fmt.Sprintf("an event has been waiting for %s: look into the log of %s for an outage of Kafka, and whether more is committed than it can carry", age(st.Oldest), st.Holder))
	}
	return r
}

// heldToDo says what an operator has still to do about a held stream.
func heldToDo(h relay.HeldInfo) string {
	switch h.State {
	case relay.StateRetry:
		return "nothing: it is to be published again, and a relay that is active does so; if the broker refuses it once more, it is held once more"
	case relay.StateSkip:
		return fmt.Sprintf("nothing: what the broker refuses was given up (up to seq %d), and a relay that is active sends the marker and goes on behind it", h.SkipTo)
	}
	return fmt.Sprintf("\"relay held show -topic %s -key %s\" shows the record; mend what the reason names (the topic's max.message.bytes, a rule of the broker's) and run \"relay held retry\", or give the event up with \"relay held skip\"; until then it and all later ones of the stream stay in the outbox", config.Typed(h.Topic), config.Typed(h.Key))
}

// atWork names the instances that have shards, as their operator has named them.
func atWork(st relay.Status) string {
	var names []string
	for _, i := range st.Instances {
		if len(i.Shards) > 0 {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return st.Holder // those who have died within the lease time
	}
	return strings.Join(names, ", ")
}

func (r statusReport) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("schema   %s, at %s on the database's clock", r.Schema, clock(r.Now))
	if a := r.Active; a != nil {
		line("active   %s, epoch %d, token %d; its lease ends in %s unless renewed", a.Instance, a.Epoch, a.Token, age(a.LeaseExpires.Sub(r.Now)))
	} else {
		line("active   none")
	}
	switch {
	case r.Backlog.Events == 0:
		line("backlog  none")
	default:
		line("backlog  %s, the oldest has waited %s", events(r.Backlog.Events, r.Backlog.AtLeast), age(seconds(r.Backlog.OldestAge)))
	}
	if r.Cursor != nil {
		line("cursor   stored %s ago (an idle relay stores nothing)", age(seconds(r.Cursor.Age)))
	} else {
		line("cursor   never stored: nothing was published yet")
	}
	line("held     %s", count(len(r.Held), "stream"))
	for _, h := range r.Held {
		line("  topic %q, key %q, from epoch %d, seq %d (pos %d) on, since %s\n    reason: %s", h.Topic, h.Key, h.Epoch, h.Seq, h.Pos, clock(h.Since), h.Reason)
		if h.AskedAt != nil && h.State != string(relay.StateHeld) {
			line("    asked:  %s by %q at %s", h.State, h.AskedBy, clock(*h.AskedAt))
		}
		line("    to do:  %s", h.ToDo)
	}
	line("refused  %s", r.setAside())
	for _, f := range r.Refused {
		name := fmt.Sprintf("topic %q", f.Topic)
		if f.Partition >= 0 {
			name += fmt.Sprintf(", partition %d,", f.Partition)
		}
		line("  %s since %s, %s\n    reason: %s\n    to do:  %s", name, clock(f.Since), r.waitingFor(f), f.Reason, f.ToDo)
	}
	r.textAround(line)
	for _, what := range r.ToDo {
		line("to do    %s", what)
	}
	return b.String()
}

// setAside counts what is refused.
func (r statusReport) setAside() string {
	topics, partitions := 0, 0
	for _, f := range r.Refused {
		if f.Partition >= 0 {
			partitions++
		} else {
			topics++
		}
	}
	switch {
	case partitions == 0:
		return count(topics, "topic")
	case topics == 0:
		return count(partitions, "partition")
	}
	return count(topics, "topic") + " and " + count(partitions, "partition")
}

// waitingFor says what waits for a refused topic.
func (r statusReport) waitingFor(f refused) string {
	held := 0
	for _, h := range r.Held {
		if h.Topic == f.Topic {
			held++
		}
	}
	switch {
	case f.Events > 0:
		return events(f.Events, f.AtLeast) + " waiting"
	case held > 0:
		return "nothing waits for it but " + count(held, "held stream")
	}
	return "nothing waits for it"
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// age is a duration as a person says it.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func events(n int64, more bool) string {
	word := "events"
	if n == 1 {
		word = "event"
	}
	if more {
		return fmt.Sprintf("at least %d %s", n, word)
	}
	return fmt.Sprintf("%d %s", n, word)
}

func count(n int, thing string) string {
	switch n {
	case 0:
		return "none"
	case 1:
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
