package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// PartitionInfo is what is known of a partition.
type PartitionInfo struct {
	Partition
	// Next is the offset to read next.
	Next int64
	// Overflow is the lowest offset of what did not fit; NoOffset if all did.
	Overflow int64
	// TruncatedAt is when it was noticed that events went unread, and nobody has
	// accepted that yet; zero if that is not so. LostFrom and LostTo are the
	// offsets, where they are known; else NoOffset.
	TruncatedAt      time.Time
	LostFrom, LostTo int64
}

// Partitions lists the partitions that the consumer has read.
func (o *Operator) Partitions(ctx context.Context) ([]PartitionInfo, error) {
	rows, err := o.pool.Query(ctx, o.sql.partitionList, o.guard.cfg.Consumer)
	if err != nil {
		return nil, fmt.Errorf("consumer: list partitions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p PartitionInfo, err error) {
		var at *time.Time
		err = row.Scan(&p.Topic, &p.ID, &p.Next, &p.Overflow, &at, &p.LostFrom, &p.LostTo)
		if at != nil {
			p.TruncatedAt = *at
		}
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: list partitions: %w", err)
	}
	return list, nil
}

// AcceptTruncation gives up what went unread of a partition: everything that was
// in these offsets and that no later copy has brought, also whole lives of keys
// of which no record will ever say that they were there. Publish again what the
// outbox still has first (relay republish). The parks that the flag held go on,
// lowest first, as soon as the consumer looks.
//
// Where the flag is gone already, the parks are told to go on all the same, and
// accepted is false: that repairs a call whose second half failed.
func (o *Operator) AcceptTruncation(ctx context.Context, p Partition, note Note) (accepted bool, err error) {
	if err := note.check("accept"); err != nil {
		return false, err
	}
	// The flag first, alone: it waits for all who are deciding while it stands (they
	// hold its row), and these hold guards, so that no guard may be locked here.
	err = o.tx(ctx, func(tx pgx.Tx) error {
		var from, to int64
		err := tx.QueryRow(ctx, o.sql.truncatedAt, o.guard.cfg.Consumer, p.Topic, p.ID).Scan(&accepted, &from, &to)
		if errors.Is(err, pgx.ErrNoRows) {
			return &RefusedError{"accept", p.String(), "the consumer has not read this partition"}
		}
		if err != nil {
			return fmt.Errorf("consumer: reading the flag of %s: %w", p, err)
		}
		if !accepted {
			return nil
		}
		if _, err := tx.Exec(ctx, o.sql.accept, o.guard.cfg.Consumer, p.Topic, p.ID); err != nil {
			return fmt.Errorf("consumer: taking down the flag of %s: %w", p, err)
		}
		return o.audit(ctx, tx, "accept", note, []AuditEntry{{Topic: p.Topic, Partition: p.ID, FromOffset: from, ToOffset: to}})
	})
	if err != nil {
		return false, err
	}
	// Then the guards, in key order like everybody who locks several. What the login
	// has set for its queries would end this each time that it is repeated.
	err = o.tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local statement_timeout = 0"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, o.sql.recheckAll, o.guard.cfg.Consumer)
		return err
	})
	if err != nil {
		return accepted, fmt.Errorf("consumer: telling the parks to go on (accept again to repeat that): %w", err)
	}
	return accepted, nil
}

// AcceptTopic lets a consumer read a topic whose number of partitions has
// changed. ends are the offsets up to which each of the old partitions had
// records when that happened, or later ones: the consumer must have read them
// all, and nothing of the topic may be parked, or not stored. (A dead letter may:
// whether it is applied one day is decided on what was applied by then.) That no
// closed key was swept since the change can't be seen here and is what the
// operator vouches for.
func (o *Operator) AcceptTopic(ctx context.Context, topic string, partitions int, ends map[int]int64, note Note) error {
	return o.acceptTopic(ctx, topic, partitions, ends, note, false)
}

// CanAcceptTopic says why [Operator.AcceptTopic] refuses, or nil. It changes
// nothing, but needs the same role.
func (o *Operator) CanAcceptTopic(ctx context.Context, topic string, partitions int, ends map[int]int64) error {
	err := o.acceptTopic(ctx, topic, partitions, ends, Note{"nobody", "only looked at"}, true)
	if errors.Is(err, errLooked) {
		return nil
	}
	return err
}

func (o *Operator) acceptTopic(ctx context.Context, topic string, partitions int, ends map[int]int64, note Note, look bool) error {
	if err := note.check("accept_topic"); err != nil {
		return err
	}
	refuse := func(format string, args ...any) error {
		return &RefusedError{"accept_topic", fmt.Sprintf("topic %q", topic), fmt.Sprintf(format, args...)}
	}
	return o.tx(ctx, func(tx pgx.Tx) error {
		var have int
		err := tx.QueryRow(ctx, o.sql.pinned, o.guard.cfg.Consumer, topic).Scan(&have)
		if errors.Is(err, pgx.ErrNoRows) {
			return refuse("the consumer has not read it")
		}
		if err != nil {
			return fmt.Errorf("consumer: reading how many partitions %q had: %w", topic, err)
		}
		if partitions <= have {
			return refuse("its number of partitions was %d, and a topic only gets more: one with fewer was created anew; create it with as many, or read it by another Config.Name, which begins anew", have)
		}
		rows, err := tx.Query(ctx, o.sql.topicState, o.guard.cfg.Consumer, topic)
		if err != nil {
			return fmt.Errorf("consumer: reading how far %q was read: %w", topic, err)
		}
		type state struct {
			id           int
			next         int64
			clean, empty bool
		}
		states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s state, err error) {
			return s, row.Scan(&s.id, &s.next, &s.clean, &s.empty)
		})
		if err != nil {
			return fmt.Errorf("consumer: reading how far %q was read: %w", topic, err)
		}
		for id := range have {
			end, given := ends[id]
			i := slices.IndexFunc(states, func(s state) bool { return s.id == id })
			switch {
			case !given:
				return refuse("up to which offset had partition %d records when the number changed?", id)
			case end > 0 && i < 0:
				return refuse("partition %d was not read", id)
			case i < 0:
			case states[i].next < end:
				return refuse("partition %d is read up to %d, and had records up to %d", id, states[i].next, end)
			case !states[i].clean:
				return refuse("something of partition %d went unread, or did not fit: see relay inbox partition list", id)
			case !states[i].empty:
				return refuse("something of partition %d is parked: see relay inbox parked list", id)
			}
		}
		if look {
			return errLooked
		}
		if _, err := tx.Exec(ctx, o.sql.pin, o.guard.cfg.Consumer, topic, partitions); err != nil {
			return fmt.Errorf("consumer: pinning %q: %w", topic, err)
		}
		return o.audit(ctx, tx, "accept_topic", note, []AuditEntry{{Topic: topic, FromOffset: NoOffset, ToOffset: NoOffset,
			Detail: fmt.Sprintf(`{"from_partitions": %d, "to_partitions": %d}`, have, partitions)}})
	})
}
