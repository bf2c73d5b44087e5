package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

func parkedList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	i, s := newInbox("parked list", "Lists the streams that stand: at a hole, at a life that nothing proves, at an event that fails, at a contradiction. A login with the role <schema>_monitor is enough.")
	i.listing(s)
	var after consumer.StreamKey
	s.String(&after.Stream, "after-stream", "", "", "list streams behind this one, to go on with a long list")
	s.String(&after.Key, "after-key", "", "", "and behind this key of it")
	return i.run(ctx, s, args, stdout, schema.KindMonitor, func(op *consumer.Operator) error {
		ask := i.filter
		ask.After.StreamKey = after
		ask.Limit++ // one more tells whether there are more
		list, err := op.Parked(ctx, ask)
		if err != nil {
			return err
		}
		r := parkedReport{More: len(list) > i.filter.Limit, Streams: []parkedLine{}}
		for _, b := range list[:min(len(list), i.filter.Limit)] {
			r.Streams = append(r.Streams, newParkedLine(b))
		}
		return i.print(stdout, r)
	})
}

// parkedReport is what "relay inbox parked list" prints.
type parkedReport struct {
	Streams []parkedLine `json:"streams"`
	More    bool         `json:"more"`
}

type parkedLine struct {
	Stream   string    `json:"stream"`
	Key      string    `json:"key"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Epoch    int64     `json:"epoch"`
	Seq      int64     `json:"seq"`
	Parked   int64     `json:"parked"`
	Bytes    int64     `json:"bytes"`
	Unstored bool      `json:"unstored"`
}

func newParkedLine(b consumer.Blocked) parkedLine {
	return parkedLine{b.Stream, b.Key, string(b.Reason), b.Since.UTC(), b.Epoch, b.Seq, b.Parked, b.Bytes, b.Unstored}
}

func (r parkedReport) text() string {
	var b strings.Builder
	for _, l := range r.Streams {
		fmt.Fprintf(&b, "stream %q, key %q stands since %s behind epoch %d, seq %d (%s): %d parked, %d bytes", l.Stream, l.Key, clock(l.Since), l.Epoch, l.Seq, l.Reason, l.Parked, l.Bytes)
		if l.Unstored {
			b.WriteString(", more did not fit")
		}
		b.WriteByte('\n')
	}
	switch {
	case len(r.Streams) == 0:
		b.WriteString("no stream stands\n")
	case r.More:
		last := r.Streams[len(r.Streams)-1]
		fmt.Fprintf(&b, "there are more: go on with -after-stream %s -after-key %s\n", config.Typed(last.Stream), config.Typed(last.Key))
	}
	return b.String()
}

func parkedShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	i, s := newInbox("parked show", "Shows a stream's guard, and what is parked of it in the order in which it will be decided. With -epoch and -seq it shows one record with what it says: "+
		"that needs a login with the role <schema>_operator, the rest only <schema>_monitor.")
	i.ofStream(s)
	s.Int64(&i.epoch, "epoch", "", 0, 0, maxPosition, "show the record of this epoch")
	s.Int64(&i.seq, "seq", "", 0, 0, maxPosition, "and of this seq")
	s.Int(&i.filter.Limit, "limit", "", 100, 1, 100_000, "show so many records at most")
	kind := schema.KindMonitor
	return i.run(ctx, s, args, stdout, kind, func(op *consumer.Operator) error {
		if (i.epoch == 0) != (i.seq == 0) {
			return &config.UsageError{Err: fmt.Errorf("%s: a record has both an epoch and a seq: give -epoch and -seq, or neither", s.Name)}
		}
		if i.seq != 0 {
			return i.printRecord(stdout, func() (consumer.StoredRecord, error) { return op.ParkedRecord(ctx, i.position()) }, thePosition(i))
		}
		g, err := op.Guard(ctx, i.stream)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("consumer %q has no guard for %s: it has read nothing of it, or has forgotten it", i.consumer, theStream(i))
		}
		if err != nil {
			return err
		}
		ask := i.filter
		ask.Limit++ // one more tells whether there are more
		list, err := op.Records(ctx, i.stream, ask)
		if err != nil {
			return err
		}
		return i.print(stdout, streamReport{Stream: i.stream.Stream, Key: i.stream.Key, Guard: newGuardLine(g), Records: storedLines(list[:min(len(list), i.filter.Limit)]), More: len(list) > i.filter.Limit})
	})
}

// streamReport is what "relay inbox parked show" prints.
type streamReport struct {
	Stream  string       `json:"stream"`
	Key     string       `json:"key"`
	Guard   guardLine    `json:"guard"`
	Records []storedLine `json:"records"`
	More    bool         `json:"more"`
}

type guardLine struct {
	Policy       string     `json:"policy"`
	Start        string     `json:"start"`
	Epoch        int64      `json:"epoch"`
	Token        int64      `json:"token"`
	Seq          int64      `json:"seq"`
	Missed       string     `json:"missed"`
	EndSeq       int64      `json:"end_seq"`
	StartEpoch   int64      `json:"start_epoch"`
	StartSeq     int64      `json:"start_seq"`
	Settled      bool       `json:"settled"`
	WaitingEpoch int64      `json:"waiting_epoch"`
	Blocked      string     `json:"blocked"`
	Since        *time.Time `json:"blocked_since"`
	Parked       int64      `json:"parked"`
	Bytes        int64      `json:"bytes"`
	Unstored     []string   `json:"unstored"`
	Recheck      bool       `json:"recheck"`
	Forgotten    int64      `json:"forgotten"`
}

func newGuardLine(g consumer.GuardInfo) guardLine {
	return guardLine{string(g.Policy), string(g.Start), g.Epoch, g.Token, g.Seq, g.Missed.String(), g.EndSeq, g.StartEpoch, g.StartSeq, g.Settled, g.WaitingEpoch,
		string(g.Blocked), maybe(g.BlockedSince), g.Parked, g.Bytes, g.Unstored, g.Recheck, g.Forgotten}
}

func (r streamReport) text() string {
	var b strings.Builder
	g := r.Guard
	fmt.Fprintf(&b, "guard   stream %q, key %q: epoch %d, token %d, seq %d, %s from %s\n", r.Stream, r.Key, g.Epoch, g.Token, g.Seq, g.Policy, g.Start)
	if g.Missed != "{}" {
		fmt.Fprintf(&b, "missed  %s\n", g.Missed)
	}
	if g.Blocked != "" {
		fmt.Fprintf(&b, "stands  since %s: %s\n", clock(*g.Since), g.Blocked)
	}
	if len(g.Unstored) > 0 {
		fmt.Fprintf(&b, "unread  something of %s did not fit and will be read again\n", strings.Join(g.Unstored, ", "))
	}
	if g.Recheck {
		b.WriteString("pending the consumer will decide again what is parked\n")
	}
	for _, l := range r.Records {
		b.WriteString(l.text())
	}
	if r.More {
		fmt.Fprintf(&b, "there are more (%d in all): show them with a larger -limit\n", g.Parked)
	}
	return b.String()
}

func parkedRetry(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "parked retry", "Lets a stream go on that stands at an event that fails or at a contradiction: what is parked is decided again.", "retried", soon,
		(*inbox).ofStream, theStream, func(i *inbox, op *consumer.Operator) error { return op.Retry(ctx, i.stream, i.note()) })
}

func parkedDiscard(ctx context.Context, args []string, stdout, _ io.Writer) error {
	to, giveUp := int64(0), false
	return change(ctx, args, stdout, "parked discard", "Gives events of a strict stream up, parked or missing, in the epoch in which its guard is: none of them is ever applied, and what follows goes on. "+
		"What was not seen yet may still come, and is given up with -give-up alone.", "discarded", soon,
		func(i *inbox, s *config.Set) {
			i.at(s)
			s.Int64(&to, "to", "", 0, 0, maxPosition, "give up everything from -seq up to this seq")
			s.Bool(&giveUp, "give-up", "", "really give up what nobody has seen yet; without it nothing of that is changed")
		},
		func(i *inbox) string { return fmt.Sprintf("%s to %d", thePosition(i), max(i.seq, to)) },
		func(i *inbox, op *consumer.Operator) error {
			if to == 0 {
				to = i.seq
			}
			if giveUp {
				return op.DiscardUnseen(ctx, i.stream, i.epoch, i.seq, to, i.note())
			}
			err := op.Discard(ctx, i.stream, i.epoch, i.seq, to, i.note())
			var unseen *consumer.UnseenError
			if errors.As(err, &unseen) {
				return fmt.Errorf("nothing was changed: this would give up everything of %s behind epoch %d, seq %d and up to seq %d, of which nothing was seen: it may still come. Publish it again first: relay republish; if the outbox has it no more, repeat this with -give-up",
					theStream(i), unseen.Epoch, unseen.Highest, unseen.To)
			}
			return err
		})
}

func parkedAdopt(ctx context.Context, args []string, stdout, _ io.Writer) error {
	giveUp := false
	return change(ctx, args, stdout, "parked adopt", "Makes a position the next one of a strict stream, and gives up everything between it and the guard, whole lives too. It only goes forwards and can't be taken back: "+
		"publish again what is missing first, with \"relay republish\", where the outbox still has it.", "adopted", soon,
		func(i *inbox, s *config.Set) {
			i.at(s)
			s.Bool(&giveUp, "give-up", "", "really give up what lies before; without it nothing is changed")
		}, thePosition,
		func(i *inbox, op *consumer.Operator) error {
			if !giveUp {
				// Whether it can be done at all comes before whether it is meant.
				would, err := op.CanAdopt(ctx, i.stream, i.epoch, i.seq)
				if err != nil {
					return err
				}
				return fmt.Errorf("nothing was changed: this would give up everything of %s behind epoch %d, seq %d and before epoch %d, seq %d. Publish it again first: relay republish; if the outbox has it no more, repeat this with -give-up",
					theStream(i), would.From.Epoch, would.From.Seq, i.epoch, i.seq)
			}
			_, err := op.Adopt(ctx, i.stream, i.epoch, i.seq, i.note())
			return err
		})
}

func parkedErase(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "parked erase", "Erases what a parked record says. The row stays, and its stream stands at it until it is discarded.", "erased", isGone,
		(*inbox).at, thePosition, func(i *inbox, op *consumer.Operator) error {
			return op.EraseParked(ctx, i.stream, i.epoch, i.seq, i.note())
		})
}
