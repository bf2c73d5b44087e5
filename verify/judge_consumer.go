package verify

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// judgeConsumer: a consumer's guard stands on a position that the outbox knows,
// and covers every record that the consumer has read past.
func (r *run) judgeConsumer(p *parts, number int32) {
	c := &r.follow[number]
	s, follows := c.streams[p.name.stream]
	if !follows {
		return
	}
	say := func(k Kind, v *seen, format string, args ...any) {
		f := Finding{Kind: k, Consumer: c.name, Stream: p.name.stream, Key: p.name.key, Detail: fmt.Sprintf(format, args...)}
		if v != nil {
			f.Epoch, f.Token, f.Seq = v.epoch, v.token, v.seq
			if v.source == inTopic {
				f.Where = place(v.topic, v.partition, v.offset)
			}
		}
		r.found(f)
	}
	var guard *seen
	for _, g := range p.guards {
		if g.partition == number {
			guard = g
		}
	}
	if guard != nil && guard.seq > 0 {
		switch {
		case r.knows(p, guard.at(), 0) == phantom:
			say(Phantom, guard, "the guard stands on a position that is not one of the outbox, which %s", p.outboxHas())
		case r.born != 0 && guard.epoch < r.born && len(p.heads) > 0 && p.heads[len(p.heads)-1].epoch < r.born:
			say(Unfollowed, guard, "nothing was appended since a new history began; the guard stands on what came before")
		}
	}
	missed := missedSeqs(guard)
	told := false
	for _, v := range p.logged {
		o, reads := c.offsets[logPartition{v.topic, v.partition}]
		switch {
		case told, !reads, v.offset >= o.next, o.overflow >= 0 && v.offset >= o.overflow:
			continue
		case guard == nil && (v.kind != outbox.KindData || v.epoch <= s.forgotten):
			continue
		case s.state && v.kind != outbox.KindData:
			continue // markers move no guard there
		case guard != nil && (v.epoch < guard.epoch || v.epoch == guard.epoch && (v.seq <= guard.seq || missed(v.seq))):
			continue
		case p.aside[number][v.at()], c.set[logPlace{logPartition{v.topic, v.partition}, v.offset}]:
			continue
		}
		told = true // what follows in the stream is of no other kind
		stands := "it has no guard of this stream"
		if guard != nil {
			stands = "its guard stands at " + guard.at().String()
		}
		say(Unapplied, v, "the consumer has read up to offset %d, %s, and nothing of it is kept aside", o.next, stands)
	}
}

// missedSeqs reads a guard's multirange in the database's notation,
// {[3,5),[9,10)}.
func missedSeqs(guard *seen) func(int64) bool {
	if guard == nil || len(guard.missed) <= 2 {
		return func(int64) bool { return false }
	}
	type span struct{ from, to int64 }
	var spans []span
	for part := range strings.SplitSeq(strings.Trim(guard.missed, "{}"), "),") {
		from, to, _ := strings.Cut(strings.Trim(part, "[)"), ",")
		a, err1 := strconv.ParseInt(from, 10, 64)
		b, err2 := strconv.ParseInt(to, 10, 64)
		if err1 == nil && err2 == nil {
			spans = append(spans, span{a, b})
		}
	}
	return func(seq int64) bool {
		for _, s := range spans {
			if s.from <= seq && seq < s.to {
				return true
			}
		}
		return false
	}
}
