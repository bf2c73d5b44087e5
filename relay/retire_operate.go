package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// TopicInfo is what the relay knows of a topic.
type TopicInfo struct {
	// Topic is its name.
	Topic string
	// Partitions is the pinned partition count, 0 if the relay has never written
	// to it; PinnedAt is since when.
	Partitions int
	PinnedAt   time.Time
	// RetiredAt, RetiredBy and Why: since when, by whom and why it is retired;
	// zero and empty if it isn't. Of an accepted topic, Why is why it was.
	RetiredAt time.Time
	RetiredBy string
	Why       string
	// Refused is the reason for which the broker refuses it, Since since when;
	// empty and zero if it doesn't.
	Refused string
	Since   time.Time
	// Held is the number of its streams that are held.
	Held int64
}

// Topics lists the topics that the relay has written to, and those that it would
// write to if the broker let it.
func (o *Operator) Topics(ctx context.Context) ([]TopicInfo, error) {
	rows, err := o.pool.Query(ctx, schema.Expand(`
		select topic, coalesce(t.partitions, 0), t.pinned_at, t.retired_at, coalesce(t.retired_by, ''), coalesce(t.why, ''), coalesce(f.reason, ''), f.since,
		       (select count(*) from @schema@.relay_held h where h.topic = n.topic)
		from (select topic from @schema@.relay_topic union select topic from @schema@.relay_fork) n
		left join @schema@.relay_topic t using (topic)
		left join (select topic, min(reason) as reason, min(since) as since from @schema@.relay_fork group by topic) f using (topic)
		order by topic`, o.name))
	all := []TopicInfo{}
	if err == nil {
		var t TopicInfo
		var pinned, retired, since *time.Time
		_, err = pgx.ForEachRow(rows, []any{&t.Topic, &t.Partitions, &pinned, &retired, &t.RetiredBy, &t.Why, &t.Refused, &since, &t.Held}, func() error {
			t := t
			for _, x := range []struct {
				to   *time.Time
				from *time.Time
			}{{&t.PinnedAt, pinned}, {&t.RetiredAt, retired}, {&t.Since, since}} {
				if x.from != nil {
					*x.to = *x.from
				}
			}
			all = append(all, t)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("relay: list topics: %w", err)
	}
	return all, nil
}

// RetireTopic gives up a topic that is gone for good: whatever waits for it, end
// records included, gets its verdict, held streams too, and the relay goes on
// without it. Nothing of it is published afterwards but skip markers and end
// records, by a republish to another topic. New is false if it was retired
// before. A topic that the broker doesn't refuse can't be retired:
// [*NotPossibleError].
func (o *Operator) RetireTopic(ctx context.Context, topic string, by By) (isNew bool, err error) {
	var unasked bool
	err = o.pool.QueryRow(ctx, schema.Expand(`select coalesce(bool_and(reason = $2), false) from @schema@.relay_fork f
		where topic = $1 and partition is null and not exists (select from @schema@.relay_topic t where t.topic = $1 and t.retired_at is not null)`, o.name), topic, undescribed).Scan(&unasked)
	switch {
	case err != nil:
		return false, decided("retire a topic", err)
	case unasked:
		return false, &NotPossibleError{"topic " + topic + " is not refused by the broker, as far as is known: " + undescribed, "Start a relay: it asks the broker."}
	}
	err = write(ctx, o.pool, schema.Expand(`select @schema@.relay_topic_retire($1, $2, nullif($3, ''))`, o.name), []any{topic, by.Who, by.Why}, &isNew)
	err = decided("retire a topic", err)
	if errors.Is(err, ErrNotPossible) {
		var known bool
		if e := o.pool.QueryRow(ctx, schema.Expand(`select exists (select from @schema@.relay_topic where topic = $1) or exists (select from @schema@.relay_fork where topic = $1) or exists (select from @schema@.head where topic = $1)`, o.name), topic).Scan(&known); e == nil && !known {
			err = &NotPossibleError{"the relay has never written to topic " + topic + ", and no event was appended to it", "Check its name: \"relay topic list\" has those that the relay knows."}
		}
	}
	return isNew, err
}

// AcceptTopic accepts a topic as it is now: with another partition count than
// the relay began to write with, or again after it was retired. Drained is the
// operator's word that every consumer group has read all that is in the topic;
// without it, and where a tombstone was swept since the topic was refused, the
// answer is a [*NotPossibleError].
func (o *Operator) AcceptTopic(ctx context.Context, topic string, partitions int, drained bool, by By) error {
	err := write(ctx, o.pool, schema.Expand(`select @schema@.relay_topic_accept($1, $2::bigint::int, $3, $4, nullif($5, ''))`, o.name), []any{topic, partitions, drained, by.Who, by.Why}, nil)
	return decided("accept a topic", err)
}

// AuditEntry is a decision of an operator's, or what became of one.
type AuditEntry struct {
	// N numbers the entries.
	N int64
	// At is when, on the database's clock.
	At time.Time
	// Who said it was them, Login is who it was to the database.
	Who, Login string
	// Action is what was decided: "held retry", "held skip", "topic retire",
	// "topic accept", "republish"; or what became of it: "resumed", "held again".
	Action string
	// Topic and Key are what it is about; Key is empty for a topic as a whole.
	Topic, Key string
	// Detail is a JSON object with the rest.
	Detail json.RawMessage
}

// Audit lists the newest decisions, the newest first, of a stream, a topic (key
// empty), or all (topic empty too). The database keeps 10,000.
func (o *Operator) Audit(ctx context.Context, topic, key string, limit int) ([]AuditEntry, error) {
	rows, err := o.pool.Query(ctx, schema.Expand(`select n, at, who, login, action, coalesce(topic, ''), coalesce(key, ''), detail::text
		from @schema@.relay_audit where ($1 = '' or topic = $1) and ($2 = '' or key = $2) order by n desc limit $3`, o.name), topic, key, limit)
	all := []AuditEntry{}
	if err == nil {
		var a AuditEntry
		var detail string
		_, err = pgx.ForEachRow(rows, []any{&a.N, &a.At, &a.Who, &a.Login, &a.Action, &a.Topic, &a.Key, &detail}, func() error {
			a := a
			a.Detail = json.RawMessage(detail)
			all = append(all, a)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("relay: list decisions: %w", err)
	}
	return all, nil
}
