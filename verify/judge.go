package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/fenceline/fenceline/outbox"
)

type streamName struct{ stream, key string }

// parts are what was seen of one stream.
type parts struct {
	name   streamName
	rows   []*seen          // of the outbox, by position
	logged []*seen          // in Kafka, in the order in which it was read
	heads  []*seen          // the last is the newest
	guards []*seen          // one for each consumer that has one
	aside  map[int32]places // by consumer
	whole  bool             // nothing was cut off where the stream is in its topic
}

// at is an epoch and a seq, which name a record within its stream.
type at struct{ epoch, seq int64 }

type places map[at]bool

func (v *seen) at() at { return at{v.epoch, v.seq} }

func (a at) after(b at) bool { return a.compare(b) > 0 }

func (a at) compare(b at) int {
	return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.seq, b.seq))
}

func (a at) String() string { return fmt.Sprintf("%d/%d", a.epoch, a.seq) }

func (r *run) judge(ctx context.Context) error {
	total := int64(len(r.spool.files))
	r.report.Streams = 0
	for i := range r.spool.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		all := map[streamName]*parts{}
		err := r.spool.bucket(i, func(v *seen) {
			if r.cutOff(v) {
				return
			}
			n := streamName{v.stream, v.key}
			p := all[n]
			if p == nil {
				p = &parts{name: n, aside: map[int32]places{}}
				all[n] = p
			}
			p.add(v)
		})
		if err != nil {
			return err
		}
		names := make([]streamName, 0, len(all))
		for n := range all {
			names = append(names, n)
		}
		slices.SortFunc(names, func(a, b streamName) int {
			return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.stream, b.stream))
		})
		for _, n := range names {
			r.judgeStream(all[n])
		}
		r.cfg.Progress("compare", int64(i+1), total)
	}
	return nil
}

func (p *parts) add(v *seen) {
	switch v.source {
	case inOutbox:
		p.rows = append(p.rows, v)
	case inTopic:
		p.logged = append(p.logged, v)
	case inHead:
		p.heads = append(p.heads, v)
	case inGuard:
		p.guards = append(p.guards, v)
	case aside:
		if p.aside[v.partition] == nil {
			p.aside[v.partition] = places{}
		}
		p.aside[v.partition][v.at()] = true
	}
}

func (r *run) judgeStream(p *parts) {
	slices.SortStableFunc(p.rows, func(a, b *seen) int { return a.at().compare(b.at()) })
	slices.SortFunc(p.heads, func(a, b *seen) int { return a.at().compare(b.at()) })
	if len(p.rows) > 0 || len(p.heads) > 0 {
		r.report.Streams++
	}
	if spans := r.spans[p.name.stream]; len(spans) > 0 {
		homes := r.homes(p.name)
		p.whole = !slices.ContainsFunc(homes, func(n int) bool { return spans[n].Start != 0 })
		if len(homes) > 1 {
			// What the stream has in its old partition was published before what it has
			// in the new one, which may be read first.
			turn := func(v *seen) int {
				if v.topic != p.name.stream {
					return -1
				}
				return slices.Index(homes, int(v.partition))
			}
			slices.SortStableFunc(p.logged, func(a, b *seen) int { return cmp.Compare(turn(a), turn(b)) })
		}
	}
	r.judgeRows(p)
	r.judgeContent(p)
	r.judgeLog(p)
	r.judgePublished(p)
	for _, v := range p.logged {
		if r.knows(p, v.at(), v.created) == phantom {
			r.say(Phantom, p, v, "the record is not one of the outbox, which %s", p.outboxHas())
		}
	}
	for i := range r.follow {
		r.judgeConsumer(p, int32(i))
	}
}

func (r *run) say(k Kind, p *parts, v *seen, format string, args ...any) {
	f := Finding{Kind: k, Stream: p.name.stream, Key: p.name.key, Detail: fmt.Sprintf(format, args...)}
	if v != nil {
		f.Epoch, f.Token, f.Seq = v.epoch, v.token, v.seq
		switch v.source {
		case inOutbox:
			f.Where = fmt.Sprintf("pos %d", v.offset)
		case inTopic:
			f.Where = place(v.topic, v.partition, v.offset)
		}
	}
	r.found(f)
}

// judgeRows: the outbox is dense in itself, and its head is its end.
func (r *run) judgeRows(p *parts) {
	for i, v := range p.rows {
		if i == 0 {
			continue
		}
		before := p.rows[i-1]
		switch {
		case v.at() == before.at():
			r.say(Gap, p, v, "the outbox has position %s twice, also at pos %d", v.at(), before.offset)
		case v.epoch == before.epoch && v.token < before.token:
			r.say(Token, p, v, "the event before it, seq %d, has token %d", before.seq, before.token)
		case v.epoch == before.epoch && v.offset < before.offset:
			r.say(Gap, p, v, "the event before it, seq %d, has the larger pos %d", before.seq, before.offset)
		case r.droppedAt(p, i):
			// What was between them is past its retention.
		case v.epoch == before.epoch && v.from > before.seq+1:
			r.say(Gap, p, v, "the outbox has nothing between seq %d and seq %d", before.seq, v.from)
		case v.epoch != before.epoch && v.from != 1:
			r.say(Gap, p, v, "the outbox's life %d of this stream begins with seq %d", v.epoch, v.from)
		case v.epoch != before.epoch && v.prevEpoch != 0 && (at{v.prevEpoch, v.prevSeq}) != before.at():
			r.say(Gap, p, v, "it says that the life before ended at %s, the outbox's last position of it is %s", at{v.prevEpoch, v.prevSeq}, before.at())
		}
	}
	if len(p.rows) == 0 {
		return
	}
	last := p.rows[len(p.rows)-1]
	if len(p.heads) == 0 {
		// The heads of a tombstone that was swept went with it.
		return
	}
	head := p.heads[len(p.heads)-1]
	if head.at().after(last.at()) && r.droppedAt(p, len(p.rows)) {
		return // the newest ones are past their retention
	}
	if head.at() != last.at() {
		r.say(Head, p, last, "the remembered last position is %s", head.at())
	}
}

// judgeContent: whatever has one position is one record, byte by byte.
func (r *run) judgeContent(p *parts) {
	type name struct {
		at   at
		kind outbox.Kind
	}
	first := make(map[name]*seen, len(p.rows))
	told := map[name]bool{}
	for _, of := range [][]*seen{p.rows, p.logged} {
		for _, v := range of {
			n := name{v.at(), v.kind}
			f := first[n]
			switch {
			case f == nil:
				first[n] = v
			case f.digest != v.digest && !told[n]:
				told[n] = true
				other := fmt.Sprintf("the outbox's row at pos %d", f.offset)
				if f.source == inTopic {
					other = "the record at " + place(f.topic, f.partition, f.offset)
				}
				r.say(Content, p, v, "it is not the same, byte by byte, as %s", other)
			}
		}
	}
}

// judgeLog: first copies stand in their own topic in order and without holes.
// Copies in other topics are republished or mirrored ones.
// A hole is what isn't in the topic at all: a record that only comes late is out
// of order. One that the outbox has never had is a phantom, which no consumer
// may believe, and nothing is measured by it.
func (r *run) judgeLog(p *parts) {
	all, known := places{}, places{}
	for _, v := range p.logged {
		if v.topic == p.name.stream {
			all.cover(v)
		}
	}
	var top *seen
	for _, v := range p.logged {
		if v.topic != p.name.stream || r.lookUp(p, v.at(), v.created) == phantom {
			continue
		}
		if top == nil {
			// What came before may have been cut off the log's start.
			if p.whole && v.from != 1 && all.lacks(v.epoch, 1, v.from-1) {
				r.say(Hole, p, v, "the topic, of which nothing was cut off, has none of the positions %d/1 to %d/%d", v.epoch, v.epoch, v.from-1)
			}
			top = v
			known.cover(v)
			continue
		}
		switch {
		case !v.at().after(top.at()):
			if known[v.at()] {
				r.report.Copies++
			} else {
				r.say(Order, p, v, "its first copy lies behind that of %s, at %s", top.at(), place(top.topic, top.partition, top.offset))
			}
		case v.epoch == top.epoch && v.from > top.seq+1 && all.lacks(v.epoch, top.seq+1, v.from-1):
			r.say(Hole, p, v, "the record before it is %s: the positions between are not there", top.at())
		case v.epoch == top.epoch && v.token < top.token:
			r.say(Token, p, v, "the record before it, seq %d, has token %d", top.seq, top.token)
		case v.epoch != top.epoch && v.from != 1 && all.lacks(v.epoch, 1, v.from-1):
			r.say(Hole, p, v, "its life begins with seq %d", v.from)
		case v.epoch != top.epoch && v.prevEpoch != 0 && (at{v.prevEpoch, v.prevSeq}).after(top.at()) && all.lacks(v.prevEpoch, v.prevSeq, v.prevSeq):
			r.say(Hole, p, v, "it says that the life before ended at %s, the last record before it is %s", at{v.prevEpoch, v.prevSeq}, top.at())
		}
		if v.at().after(top.at()) {
			top = v
		}
		known.cover(v)
	}
}

// cover adds a record's positions. Of a marker's range only the ends are kept:
// a range can be as long as it likes.
func (s places) cover(v *seen) {
	s[v.at()] = true
	if v.from != v.seq {
		s[at{v.epoch, v.from}] = true
	}
}

// lacks: one of these positions is not there. A range that is longer than what
// there is lacks some; the inside of a marker's range counts as lacking, which a
// record that comes before the marker's end says of itself.
func (s places) lacks(epoch, from, to int64) bool {
	if to-from >= int64(len(s)) {
		return true
	}
	for seq := from; seq <= to; seq++ {
		if !s[at{epoch, seq}] {
			return true
		}
	}
	return false
}

// judgePublished: what the relay's cursor has passed is in the topic.
func (r *run) judgePublished(p *parts) {
	spans, exists := r.spans[p.name.stream]
	if !exists || len(p.rows) == 0 {
		return
	}
	there := places{}
	var markers []*seen
	var lowest *seen
	for _, v := range p.logged {
		if v.topic != p.name.stream {
			continue
		}
		there[v.at()] = true
		if v.kind == outbox.KindSkip {
			markers = append(markers, v)
		}
		if lowest == nil || lowest.at().after(v.at()) {
			lowest = v
		}
	}
	partition := outbox.Partition([]byte(p.name.key), len(spans))
	for _, v := range p.rows {
		if v.flags&flagBehind == 0 || there[v.at()] {
			continue
		}
		if slices.ContainsFunc(markers, func(m *seen) bool { return m.epoch == v.epoch && m.from <= v.seq && v.seq <= m.seq }) {
			continue
		}
		if !p.whole && (lowest == nil || lowest.at().after(v.at())) {
			r.report.Uncovered++ // cut off the log's start
			continue
		}
		r.say(Lost, p, v, "the relay's cursor has passed it, and %s/%d doesn't have it", p.name.stream, partition)
	}
}

type knowledge int

const (
	known knowledge = iota
	uncovered
	phantom
)

// knows says whether the outbox has, or had, a position. created is 0 where it
// isn't known.
func (r *run) knows(p *parts, a at, created int64) knowledge {
	k := r.lookUp(p, a, created)
	if k == uncovered {
		r.report.Uncovered++
	}
	return k
}

func (r *run) lookUp(p *parts, a at, created int64) knowledge {
	if len(p.heads) > 0 && a.after(p.heads[len(p.heads)-1].at()) {
		return phantom
	}
	if len(p.rows) > 0 {
		i, ok := slices.BinarySearchFunc(p.rows, a, func(v *seen, a at) int { return v.at().compare(a) })
		if ok {
			return known
		}
		first := p.rows[0]
		switch before := (at{first.prevEpoch, first.prevSeq}); {
		case i < len(p.rows) && p.rows[i].epoch == a.epoch && p.rows[i].from <= a.seq:
			return known // inside a marker's range
		case a.after(first.at()) && r.droppedAt(p, i):
			// It may have been there.
		case a.after(first.at()):
			return phantom // the rows are dense from the first on
		case first.from == 1 && before.epoch != 0 && a.epoch < first.epoch && a.after(before):
			return phantom // between the end of the life before and this one's beginning
		}
	}
	if created != 0 && created >= r.since {
		return phantom
	}
	return uncovered
}

func (p *parts) outboxHas() string {
	switch {
	case len(p.rows) > 0:
		return fmt.Sprintf("has %s to %s of this stream", p.rows[0].at(), p.rows[len(p.rows)-1].at())
	case len(p.heads) > 0:
		return fmt.Sprintf("says that the stream ended at %s", p.heads[len(p.heads)-1].at())
	}
	return "has never heard of this stream"
}
