package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/internal/topiclog"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/verify"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// settle waits until the relay has nothing left to publish and the consumer
// has decided on everything that is in Kafka.
func (g *stage) settle(ctx context.Context) error {
	err := g.until(ctx, "the relay to publish everything", func() (bool, string, error) {
		log, err := g.readTopic(ctx)
		if err != nil {
			return false, "", err
		}
		var events int
		err = g.pool.QueryRow(ctx, "select count(*) from "+schema.Quote(g.schema)+".outbox").Scan(&events)
		return len(log.positions) >= events, fmt.Sprintf("%d of %d events", len(log.positions), events), err
	})
	if err != nil {
		return err
	}
	return g.until(ctx, "the consumer to catch up", func() (bool, string, error) {
		ends, err := g.admin.ListEndOffsets(ctx, g.topic)
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			return false, "", err
		}
		rows, err := g.pool.Query(ctx, "select partition, next_offset from "+schema.Quote(g.schema)+".consumer_offset where consumer = $1 and topic = $2", g.group, g.topic)
		if err != nil {
			return false, "", err
		}
		defer rows.Close()
		next := map[int32]int64{}
		for rows.Next() {
			var p int32
			var n int64
			if err := rows.Scan(&p, &n); err != nil {
				return false, "", err
			}
			next[p] = n
		}
		lag := int64(0)
		ends.Each(func(o kadm.ListedOffset) { lag += max(0, o.Offset-next[o.Partition]) })
		return lag == 0, fmt.Sprintf("%d records behind", lag), rows.Err()
	})
}

// rewind sets the group's offsets to the beginning, as an operator would who
// wants everything to be read again, and gives the number of records that there
// are to read.
func (g *stage) rewind(ctx context.Context) (int, error) {
	ends, err := g.admin.ListEndOffsets(ctx, g.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	var offsets kadm.Offsets
	total := 0
	ends.Each(func(o kadm.ListedOffset) {
		total += int(o.Offset)
		offsets.AddOffset(o.Topic, o.Partition, 0, -1)
	})
	// The group may take a moment to notice that its last member has left.
	err = g.until(ctx, "the group to be empty", func() (bool, string, error) {
		answers, err := g.admin.CommitOffsets(ctx, g.group, offsets)
		if err == nil {
			err = answers.Error()
		}
		if err != nil {
			return false, err.Error(), nil
		}
		return true, "", nil
	})
	return total, err
}

// position is an event's place, over all streams of the topic.
type position struct {
	key        string
	epoch, seq int64
}

// topicLog is everything that is in the topic.
type topicLog struct {
	records   int
	positions map[position]*kgo.Record // the first copy of each
	tokens    map[position]int64
	order     map[string][]position // first copies of each key, in log order
	differ    []string              // copies that are not the same bytes, records that can't be read
}

// copies is the number of records that are in the log for a second time.
func (l *topicLog) copies() int { return l.records - len(l.positions) }

func (l *topicLog) first(key string) *kgo.Record {
	if len(l.order[key]) == 0 {
		return nil
	}
	return l.positions[l.order[key][0]]
}

func (l *topicLog) last(key string) int64 {
	o := l.order[key]
	if len(o) == 0 {
		return 0
	}
	return o[len(o)-1].seq
}

func (g *stage) readTopic(ctx context.Context) (*topicLog, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ends, err := g.admin.ListEndOffsets(ctx, g.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	log := &topicLog{positions: map[position]*kgo.Record{}, tokens: map[position]int64{}, order: map[string][]position{}}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
			from[o.Partition] = kgo.NewOffset().AtStart()
		}
	})
	if len(left) == 0 {
		return log, nil
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(g.brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{g.topic: from}))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read the topic: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			log.add(r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return log, nil
}

func (l *topicLog) add(r *kgo.Record) {
	l.records++
	headers := make([]outbox.WireHeader, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = outbox.WireHeader{Key: h.Key, Value: h.Value}
	}
	event, err := outbox.ParseWire(r.Topic, r.Key, r.Value, r.Timestamp, headers)
	if err != nil {
		l.differ = append(l.differ, fmt.Sprintf("record %d/%d: %v", r.Partition, r.Offset, err))
		return
	}
	p := position{event.Key, event.Epoch, event.Seq}
	first := l.positions[p]
	if first == nil {
		l.positions[p], l.tokens[p] = r, event.Token
		l.order[p.key] = append(l.order[p.key], p)
		return
	}
	same := bytes.Equal(first.Value, r.Value) && first.Partition == r.Partition && first.Timestamp.Equal(r.Timestamp) &&
		slices.EqualFunc(first.Headers, r.Headers, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) })
	if !same {
		l.differ = append(l.differ, fmt.Sprintf("the copy of %s %d/%d at %d/%d is not byte-identical", p.key, p.epoch, p.seq, r.Partition, r.Offset))
	}
}

// facts is the end of the story.
type facts struct {
	committed, published, applied, duplicates, stale, lost int
	differ                                                 []string
}

func (f *facts) line() string {
	return fmt.Sprintf("committed=%d published=%d applied=%d duplicates=%d stale=%d lost=%d", f.committed, f.published, f.applied, f.duplicates, f.stale, f.lost)
}

func (f *facts) wrong(format string, args ...any) {
	f.differ = append(f.differ, fmt.Sprintf(format, args...))
}

// check compares what the input says, by a plain count, with what each part of
// the chain says, read from where it keeps it.
func (t *story) check(ctx context.Context) (*facts, error) {
	if err := t.settle(ctx); err != nil {
		return nil, err
	}
	f := &facts{stale: t.stale, duplicates: t.counted()["duplicate"]}
	for _, c := range []func(context.Context, *facts) error{t.checkModel, t.checkOutbox, t.checkTopic, t.checkGuards, t.verify} {
		if err := c(ctx, f); err != nil {
			return nil, err
		}
	}
	f.lost = f.committed - f.applied
	if f.lost != 0 {
		f.wrong("%d committed events were not applied", f.lost)
	}
	return f, nil
}

// checkModel: the downstream tables are what a plain count over the input gives.
func (t *story) checkModel(ctx context.Context, f *facts) error {
	model, err := readmodel.New(t.modelSchema)
	if err != nil {
		return err
	}
	networks, err := model.Read(ctx, t.pool)
	if err != nil {
		return err
	}
	want := readmodel.Count(t.reports)
	for _, have := range networks {
		f.applied += int(have.Reports)
		w := want[have.Net]
		delete(want, have.Net)
		if have.Reports != w.Reports || have.Largest != w.Largest || !have.LastUpdate.Equal(w.LastUpdate) {
			f.wrong("network %s: the read model says %d, %.2f, %s, the input %d, %.2f, %s", have.Net, have.Reports, have.Largest, have.LastUpdate.UTC().Format(time.RFC3339),
				w.Reports, w.Largest, w.LastUpdate.Format(time.RFC3339))
		}
	}
	for net := range want {
		f.wrong("network %s is missing in the read model", net)
	}
	t.out.scene("The downstream service's own table")
	return readmodel.Print(indented{t.out}, networks)
}

// indented lets a table stand among the story's lines.
type indented struct{ out *printer }

func (w indented) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		w.out.say("%s", bytes.TrimRight(line, "\n"))
	}
	return len(p), nil
}

// checkOutbox: results, receipts and events are one for one, and the events
// of each key are dense.
func (t *story) checkOutbox(ctx context.Context, f *facts) error {
	var results, receipts, events, broken int
	err := t.pool.QueryRow(ctx, `select (select count(*) from `+schema.Quote(t.workSchema)+`.result),
		(select count(*) from `+schema.Quote(t.schema)+`.receipt),
		(select count(*) from `+schema.Quote(t.schema)+`.outbox),
		(select count(*) from (select key, epoch from `+schema.Quote(t.schema)+`.outbox group by key, epoch having max(seq) <> count(*) or min(seq) <> 1) b)`).
		Scan(&results, &receipts, &events, &broken)
	if err != nil {
		return err
	}
	f.committed = receipts
	if n := len(t.reports); results != n || receipts != n || events != n {
		f.wrong("%d reports, but %d results, %d receipts, %d outbox rows", n, results, receipts, events)
	}
	if broken != 0 {
		f.wrong("%d streams have holes in the outbox", broken)
	}
	return nil
}

// checkTopic: every event is in Kafka, first copies in the order of their
// stream without holes, further copies byte-identical.
func (t *story) checkTopic(ctx context.Context, f *facts) error {
	log, err := t.readTopic(ctx)
	if err != nil {
		return err
	}
	f.published = len(log.positions)
	f.differ = append(f.differ, log.differ...)
	if f.published != f.committed {
		f.wrong("%d events were committed, %d are in Kafka", f.committed, f.published)
	}
	for key, order := range log.order {
		for i, p := range order {
			if p.seq != int64(i+1) || log.tokens[p] < log.tokens[order[max(0, i-1)]] {
				f.wrong("the first copies of %s are out of order in Kafka at seq %d", key, p.seq)
				break
			}
		}
	}
	return nil
}

// checkGuards: each guard stands where its stream ends, with nothing missed and
// nothing waiting.
func (t *story) checkGuards(ctx context.Context, f *facts) error {
	rows, err := t.pool.Query(ctx, `select coalesce(h.key, g.key), coalesce(h.epoch, 0), coalesce(h.seq, 0), coalesce(g.epoch, 0), coalesce(g.seq, 0), coalesce(g.missed::text, '{}')
		from `+schema.Quote(t.schema)+`.head h
		full join (select * from `+schema.Quote(t.schema)+`.guard where consumer = $1) g on g.stream = h.topic and g.key = h.key`, t.group)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key, missed string
		var epoch, seq, guardEpoch, guardSeq int64
		if err := rows.Scan(&key, &epoch, &seq, &guardEpoch, &guardSeq, &missed); err != nil {
			return err
		}
		if epoch != guardEpoch || seq != guardSeq || missed != "{}" {
			f.wrong("the guard of %s stands at %d/%d, missed %s, its stream ends at %d/%d", key, guardEpoch, guardSeq, missed, epoch, seq)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, table := range []string{"parked", "dead", "quarantine"} {
		var n int
		if err := t.pool.QueryRow(ctx, "select count(*) from "+schema.Quote(t.schema)+"."+schema.Quote(table)+" where consumer = $1", t.group).Scan(&n); err != nil {
			return err
		}
		if n != 0 {
			f.wrong("%s has %d records", table, n)
		}
	}
	return nil
}

// verify is what "relay verify" does: everything is compared with everything.
func (t *story) verify(ctx context.Context, f *facts) error {
	log, err := kafkasource.OpenLog(kafkasource.LogConfig{Brokers: t.brokers})
	if err != nil {
		return err
	}
	defer log.Close()
	report, err := verify.Run(ctx, verify.Config{
		Producer: t.pool, Schema: t.schema, Log: topiclog.New(log),
		Consumers: []verify.Consumer{{Name: t.group, Pool: t.pool, Schema: t.schema}},
		Found:     func(d verify.Finding) { f.wrong("verify: %s", d) },
	})
	if err != nil {
		return err
	}
	t.out.scene("Outbox, receipts, fences, topic and guards are compared (relay verify)")
	t.out.say("%d streams, %d events, %d records (%d of them copies), %d guards: %d disagreements", report.Streams, report.Events, report.Records, report.Copies, report.Guards, report.Total())
	return nil
}
