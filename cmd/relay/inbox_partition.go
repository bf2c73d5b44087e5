package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

func partitionList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	i, s := newInbox("partition list", "Lists how far a consumer has read each partition, what of it did not fit, and what went unread. A login with the role <schema>_monitor is enough.")
	return i.run(ctx, s, args, stdout, schema.KindMonitor, func(op *consumer.Operator) error {
		list, err := op.Partitions(ctx)
		if err != nil {
			return err
		}
		r := partitionReport{Partitions: []partitionLine{}}
		for _, p := range list {
			r.Partitions = append(r.Partitions, partitionLine{p.Topic, p.ID, p.Next, p.Overflow, maybe(p.TruncatedAt), p.LostFrom, p.LostTo})
		}
		return i.print(stdout, r)
	})
}

// partitionReport is what "relay inbox partition list" prints. Offsets that are
// not there are -1.
type partitionReport struct {
	Partitions []partitionLine `json:"partitions"`
}

type partitionLine struct {
	Topic       string     `json:"topic"`
	Partition   int        `json:"partition"`
	Next        int64      `json:"next"`
	Overflow    int64      `json:"overflow"`
	TruncatedAt *time.Time `json:"truncated_at"`
	LostFrom    int64      `json:"lost_from"`
	LostTo      int64      `json:"lost_to"`
}

func (r partitionReport) text() string {
	var b strings.Builder
	for _, p := range r.Partitions {
		fmt.Fprintf(&b, "%s/%d is read up to offset %d", p.Topic, p.Partition, p.Next)
		if p.Overflow >= 0 {
			fmt.Fprintf(&b, "; from %d on, something did not fit and will be read again", p.Overflow)
		}
		if p.TruncatedAt != nil {
			fmt.Fprintf(&b, "; offsets %d to %d went unread, noticed at %s: publish again what the outbox has (relay republish), then accept", p.LostFrom, p.LostTo, clock(*p.TruncatedAt))
		}
		b.WriteByte('\n')
	}
	if len(r.Partitions) == 0 {
		b.WriteString("the consumer has read nothing\n")
	}
	return b.String()
}

func partitionAccept(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		p        consumer.Partition
		accepted bool
	)
	return change(ctx, args, stdout, "partition accept", "Gives up what went unread of a partition: everything that was in these offsets and that no later copy has brought, also whole lives of keys that will never say so. "+
		"Publish again what the outbox still has first, with \"relay republish\".", "accepted", soon,
		func(_ *inbox, s *config.Set) {
			s.String(&p.Topic, "topic", "", "", "the topic", config.Required())
			s.Int(&p.ID, "partition", "", 0, 0, 1<<20, "the partition", config.Required())
		},
		func(*inbox) string {
			if !accepted {
				return p.String() + " was not flagged any more, its parks were told to go on"
			}
			return p.String()
		},
		func(i *inbox, op *consumer.Operator) (err error) {
			accepted, err = op.AcceptTruncation(ctx, p, i.note())
			return err
		})
}

func inboxTopicAccept(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		topic      string
		partitions int
		given      []string
		swept      bool
	)
	return change(ctx, args, stdout, "topic accept", "Lets a consumer read a topic whose number of partitions has grown. It must have read each old partition up to where it was when that happened, and nothing of the topic may wait. "+
		"That no closed key was swept since then can't be seen in this database: check it, and say so.", "accepted", nothing,
		func(_ *inbox, s *config.Set) {
			s.String(&topic, "topic", "", "", "the topic", config.Required())
			s.Int(&partitions, "partitions", "", 0, 1, 1<<20, "how many partitions it has now", config.Required())
			s.List(&given, "ends", "", "", "for each old partition the offset behind its last record when the number changed, or a later one, as 0=1200,1=1310", config.Required())
			s.Bool(&swept, "nothing-swept", "", "no closed key was swept since the number changed")
		},
		func(*inbox) string { return fmt.Sprintf("topic %q with %s", topic, count(partitions, "partition")) },
		func(i *inbox, op *consumer.Operator) error {
			ends, err := parseEnds(given)
			if err != nil {
				return &config.UsageError{Err: fmt.Errorf("relay inbox topic accept: -ends: %w", err)}
			}
			if !swept {
				// Whether it can be done at all comes before whether it is meant.
				if err := op.CanAcceptTopic(ctx, topic, partitions, ends); err != nil {
					return err
				}
				return fmt.Errorf("nothing was changed: where a closed key was swept since the number of partitions changed, its last events could be overtaken by those of its next life, and nothing would show it. See that it is not so, and repeat this with -nothing-swept")
			}
			return op.AcceptTopic(ctx, topic, partitions, ends, i.note())
		})
}

func parseEnds(given []string) (map[int]int64, error) {
	ends := make(map[int]int64, len(given))
	for _, one := range given {
		id, end, ok := strings.Cut(one, "=")
		n, err1 := strconv.Atoi(strings.TrimSpace(id))
		at, err2 := strconv.ParseInt(strings.TrimSpace(end), 10, 64)
		if !ok || err1 != nil || err2 != nil || n < 0 || at < 0 {
			return nil, fmt.Errorf("%s is not a partition and an offset, as in 0=1200", config.Shown(one))
		}
		ends[n] = at
	}
	return ends, nil
}
