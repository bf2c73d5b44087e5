package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// tried is a decision, and how things are when an operator takes it.
type tried struct {
	prepare func(t *testing.T, pool *pgxpool.Pool)
	decide  func(t *testing.T, pool *pgxpool.Pool, o *Operator) error
}

// preparing holds a stream at a seq, or none at 0, and does what else is needed.
// The stream's first life has four events and an end, its second one event.
func preparing(held int64, statements ...string) func(t *testing.T, pool *pgxpool.Pool) {
	return func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if held > 0 {
			heldAt(t, pool, "k", held)
		}
		for _, sql := range statements {
			if _, err := pool.Exec(bg, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func skipOf(held, through int64, statements ...string) tried {
	return tried{preparing(held, statements...), func(t *testing.T, pool *pgxpool.Pool, o *Operator) error {
		s, err := o.Skip(bg, "a", "k", through, me)
		if err == nil {
			err = fmt.Errorf("gave up %d to %d as %s", s.From, s.To, verdicts(t, pool, "k"))
		}
		return err
	}}
}

func retryOf(by By, statements ...string) tried {
	return tried{preparing(2, statements...), func(_ *testing.T, _ *pgxpool.Pool, o *Operator) error {
		_, err := o.Retry(bg, "a", "k", by)
		return err
	}}
}

func acceptOf(topic string, partitions int, drained bool, statements ...string) tried {
	statements = append([]string{"insert into fenceline.relay_topic (topic, partitions) values ('a', 3)"}, statements...)
	return tried{preparing(0, statements...), func(_ *testing.T, _ *pgxpool.Pool, o *Operator) error {
		return o.AcceptTopic(bg, topic, partitions, drained, me)
	}}
}

func retireOf(statements ...string) tried {
	return tried{preparing(0, statements...), func(_ *testing.T, _ *pgxpool.Pool, o *Operator) error {
		_, err := o.RetireTopic(bg, "a", me)
		return err
	}}
}

const aFork = `insert into fenceline.relay_fork (topic, partition, partitions, shards, s1, low, last_pos, reason, detail, since) values ('a', %s, '{0}', '3:3:', 0, 0, 'gone', 'gone', now() - interval '1 hour')`

// Each refusal of a decision, taken out of the database's functions, and the
// decision that shows why it is there.
func TestEachRuleOfTheDecisionsIsNeeded(t *testing.T) {
	t.Parallel()
	asked := "update fenceline.relay_held set state = '%s', asked_by = 'alice', asked_at = now(), skip_to = 2"
	const refuse = "then\n    raise exception '"
	for name, c := range map[string]struct {
		function, old, new string
		try                tried
		right              string // part of the answer with the rule, and not without it
	}{
		"a skip of what isn't held": {"relay_held_skip", "if not found then\n    raise exception 'no stream", "if false then\n    raise exception 'no stream",
			skipOf(2, 0, "delete from fenceline.relay_held"), "no stream of topic a with key k is held"},
		"a skip while a retry is under way": {"relay_held_skip", "if h.state = 'retry' " + refuse, "if false " + refuse,
			skipOf(2, 0, fmt.Sprintf(asked, "retry")), "a retry was asked for"},
		"a second skip": {"relay_held_skip", "elsif h.state = 'skip' " + refuse, "elsif false " + refuse,
			skipOf(2, 0, fmt.Sprintf(asked, "skip")), "it was skipped by alice"},
		"an empty range": {"relay_held_skip", "if last < first " + refuse, "if false " + refuse,
			skipOf(3, 2), "the range from seq 3 to 2 is empty"},
		"a skip of what isn't there": {"relay_held_skip", "if not found then\n    raise exception 'the record", "if false then\n    raise exception 'the record",
			skipOf(2, 0, "update fenceline.relay_held set seq = 99"), "is not in the outbox"},
		"a skip of an end record": {"relay_held_skip", "elsif o.kind = 'end' then", "elsif false then",
			skipOf(5, 0), "the end of a life, which cannot be skipped"},
		"a skip of a marker": {"relay_held_skip", "elsif o.verdict is not null then", "elsif false then",
			skipOf(2, 0, "update fenceline.outbox set verdict = 'skipped', skip_from = 2, skip_to = 2, verdict_at = now() where key = 'k' and seq = 2"), "what the broker has refused is its marker"},
		"a range over the end of a life": {"relay_held_skip", "if found then last := n - 1; stopped_at_end := true; end if;", "",
			skipOf(3, 5), "gave up 3 to 4 as 3:3-4 4:3-4"},
		"a range beyond the newest record": {"relay_held_skip", "if n <> last - first + 1 then", "if false then",
			skipOf(2, 9, "delete from fenceline.outbox where kind = 'end'"), "of the range from seq 2 to 9 there are 3 records"},
		"a first record inside a range": {"relay_held_skip", "case when x.seq = 1 then 1 else greatest(relay_held_skip.first, 2) end, skip_to = case when x.seq = 1 then 1 else relay_held_skip.last end", "relay_held_skip.first, skip_to = relay_held_skip.last",
			skipOf(1, 3), "gave up 1 to 3 as 1:1-1 2:2-3 3:2-3"},
		"a retry of what isn't held": {"relay_held_retry", "if not found then", "if false then",
			retryOf(me, "delete from fenceline.relay_held"), "no stream of topic a with key k is held"},
		"a retry after a skip": {"relay_held_retry", "if h.state = 'skip' then", "if false then",
			retryOf(me, fmt.Sprintf(asked, "skip")), "can never be published again"},
		"a topic without partitions": {"relay_topic_accept", "if p_partitions is null or p_partitions < 1 then", "if false then",
			acceptOf("a", 0, true), "at least one partition"},
		"a topic that was never written to": {"relay_topic_accept", "if not found then", "if false then",
			acceptOf("b", 4, true), "has never written to topic b"},
		"a count that is pinned": {"relay_topic_accept", "if t.retired_at is null and t.partitions = p_partitions then", "if false then",
			acceptOf("a", 3, true), "pinned to 3 partitions already"},
		"a topic that is not drained": {"relay_topic_accept", "if p_drained is not true then", "if false then",
			acceptOf("a", 4, false), "could be overtaken"},
		"a tombstone that was swept since": {"relay_topic_accept", "if swept >= refused then", "if false then",
			acceptOf("a", 4, true, fmt.Sprintf(aFork, "null, null"), "update fenceline.retention set tombstone_at = now()"), "a tombstone was swept"},
		"a topic that the broker takes": {"relay_topic_retire", "if not exists (select 1 from \"fenceline\".relay_fork f where f.topic = p_topic and f.partition is null) then", "if false then",
			retireOf("insert into fenceline.relay_topic (topic, partitions) values ('a', 3)"), "not refused by the broker"},
		"a topic of which one partition is set aside": {"relay_topic_retire", "f.topic = p_topic and f.partition is null) then", "f.topic = p_topic) then",
			retireOf(fmt.Sprintf(aFork, "1, 3")), "not refused by the broker"},
		"a decision of nobody's": {"_relay_audit", "if p_who is null or octet_length(p_who) not between 1 and 255 then", "if false then",
			retryOf(By{}), "who does this says so"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, _ := fresh(t)
			o := operator(t, pool)
			c.try.prepare(t, pool)
			err := c.try.decide(t, pool, o)
			if !strings.Contains(fmt.Sprint(err), c.right) {
				t.Fatalf("with the rule: %v, want %q", err, c.right)
			}
			if !errors.Is(err, ErrNotPossible) { // a refusal has changed nothing
				pool, _ = fresh(t)
				o = operator(t, pool)
				c.try.prepare(t, pool)
			}
			mutate(t, pool, c.function, c.old, c.new)
			if err := c.try.decide(t, pool, o); strings.Contains(fmt.Sprint(err), c.right) {
				t.Errorf("without the rule: %v: the decision doesn't need it", err)
			}
		})
	}
}
