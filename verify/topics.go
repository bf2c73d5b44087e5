package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// findTopics gives the topics to read and about how many records they hold.
func (r *run) findTopics(ctx context.Context) (topics []string, records int64, err error) {
	if topics, err = r.streams(ctx); err != nil {
		return nil, 0, err
	}
	appended := slices.Clone(topics)
	topics = append(topics, r.cfg.Topics...)
	for _, t := range topics {
		r.ours[t] = true
	}
	for i := range r.cfg.Consumers {
		more, err := r.consumerTopics(ctx, &r.cfg.Consumers[i])
		if err != nil {
			return nil, 0, err
		}
		topics = append(topics, more...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	retired, err := r.retired(ctx)
	if err != nil {
		return nil, 0, err
	}
	if r.former, err = r.formerCounts(ctx); err != nil {
		return nil, 0, err
	}
	for _, t := range topics {
		spans, err := r.cfg.Log.Spans(ctx, t)
		switch {
		case errors.Is(err, ErrNoTopic) && slices.Contains(retired, t):
			continue
		case errors.Is(err, ErrNoTopic):
			detail := "events belong to it, and Kafka doesn't have it; nothing is said of them"
			if !slices.Contains(appended, t) {
				detail = "Kafka doesn't have it, and the outbox has no events of it"
			}
			r.found(Finding{Kind: NoTopic, Stream: t, Detail: detail})
			continue
		case err != nil:
			return nil, 0, fmt.Errorf("verify: topic %s: %w", t, err)
		}
		r.spans[t] = spans
		for _, s := range spans {
			records += s.End - s.Start
		}
	}
	return topics, records, nil
}

func (r *run) readTopics(ctx context.Context, topics []string, records int64) error {
	var done int64
	for _, topic := range topics {
		for partition := range r.spans[topic] {
			err := r.readPartition(ctx, topic, partition, func() {
				if done++; done%10_000 == 0 {
					r.cfg.Progress("topics", done, records)
				}
			})
			if err != nil {
				return fmt.Errorf("verify: topic %s/%d: %w", topic, partition, err)
			}
		}
	}
	r.report.Records = done
	r.cfg.Progress("topics", done, done)
	return nil
}

// readPartition reads what the partition holds. Retention goes on meanwhile: where it
// cuts off what is yet to be read, reading goes on at the log's new start, and the
// partition is compared as one that begins there.
func (r *run) readPartition(ctx context.Context, topic string, partition int, one func()) error {
	span := &r.spans[topic][partition]
	for from := span.Start; from < span.End; {
		var kept error
		err := r.cfg.Log.Read(ctx, topic, partition, from, span.End, func(rec LogRecord) error {
			one()
			from = rec.Offset + 1
			kept = r.record(topic, partition, rec)
			return kept
		})
		if err == nil || kept != nil {
			return cmp.Or(kept, err)
		}
		now, gone := r.cfg.Log.Spans(ctx, topic)
		if gone != nil || partition >= len(now) || now[partition].Start <= from {
			return err
		}
		r.cfg.Logger.Info("the log was cut off while it was read", "topic", topic, "partition", partition, "start", now[partition].Start)
		span.Start = min(now[partition].Start, span.End)
		from = span.Start
	}
	return nil
}

// cutOff: the record was read, and is in the log no more.
func (r *run) cutOff(v *seen) bool {
	return v.source == inTopic && v.offset < r.spans[v.topic][v.partition].Start
}

func (r *run) record(topic string, partition int, rec LogRecord) error {
	where := place(topic, int32(partition), rec.Offset)
	ev, err := outbox.ParseWire(topic, rec.Key, rec.Value, time.UnixMilli(rec.TimestampMS), rec.Headers)
	switch {
	case err != nil && !r.ours[topic] && foreign(rec.Headers):
		r.report.Foreign++
		return nil
	case err != nil:
		r.found(Finding{Kind: Unreadable, Where: where, Detail: err.Error()})
		return nil
	}
	if n := len(r.spans[topic]); ev.Stream == topic && !r.belongs(topic, rec.Key, partition, ev.CreatedAt) {
		r.found(Finding{Kind: Misplaced, Stream: ev.Stream, Key: ev.Key, Epoch: ev.Epoch, Token: ev.Token, Seq: ev.Seq, Where: where,
			Detail: fmt.Sprintf("by the number of partitions, %d, its key belongs to partition %d", n, outbox.Partition(rec.Key, n))})
	}
	v := seen{source: inTopic, stream: ev.Stream, key: ev.Key, topic: topic, partition: int32(partition), offset: rec.Offset}
	v.event(&ev)
	v.digest = fingerprint(rec.Key, rec.Value, rec.Headers)
	return r.spool.add(&v)
}

// foreign: the record doesn't say that it is an event of an outbox like ours. In a topic
// that is read because a consumer reads it, that is somebody else's.
func foreign(headers []outbox.WireHeader) bool {
	return !slices.ContainsFunc(headers, func(h outbox.WireHeader) bool {
		return strings.HasPrefix(strings.ToLower(h.Key), "ce_fence")
	})
}

// belongs: a record of this key was to be written there, by the number of
// partitions that the topic has, or by one that it had when the event was new.
func (r *run) belongs(topic string, key []byte, partition int, created time.Time) bool {
	for _, f := range r.former[topic] {
		if created.Before(f.until) && outbox.Partition(key, f.partitions) == partition {
			return true
		}
	}
	return outbox.Partition(key, len(r.spans[topic])) == partition
}

// homes are the partitions in which a stream was published, in the order of time;
// one, unless the topic's number of partitions was changed.
func (r *run) homes(name streamName) []int {
	key, n := []byte(name.key), len(r.spans[name.stream])
	var homes []int
	for _, f := range r.former[name.stream] {
		if p := outbox.Partition(key, f.partitions); p < n && !slices.Contains(homes, p) {
			homes = append(homes, p)
		}
	}
	if p := outbox.Partition(key, n); !slices.Contains(homes, p) {
		homes = append(homes, p)
	}
	return homes
}

func place(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d@%d", topic, partition, offset)
}

// event takes over what an event says of itself.
func (v *seen) event(ev *outbox.Record) {
	v.kind, v.epoch, v.token, v.seq, v.from = ev.Kind, ev.Epoch, ev.Token, ev.Seq, ev.First()
	v.created = ev.CreatedAt.UnixMicro()
	if ev.History != 0 {
		v.flags |= flagFirst
	}
	if ev.Prev != nil {
		v.prevEpoch, v.prevSeq = ev.Prev.Epoch, ev.Prev.Seq
	}
}

// fingerprint is the same for two records that are the same in every byte, but for
// Kafka's timestamp: where the topic's message.timestamp.type is LogAppendTime, the
// broker has put its own in each copy. The event's time is among the headers.
func fingerprint(key, value []byte, headers []outbox.WireHeader) [16]byte {
	h := sha256.New()
	var n [8]byte
	number := func(v int64) {
		binary.BigEndian.PutUint64(n[:], uint64(v))
		h.Write(n[:])
	}
	bytes := func(b []byte) {
		if b == nil {
			number(-1) // a tombstone is not an empty value
			return
		}
		number(int64(len(b)))
		h.Write(b)
	}
	bytes(key)
	bytes(value)
	for _, w := range headers {
		bytes([]byte(w.Key))
		bytes(append([]byte{}, w.Value...))
	}
	return [16]byte(h.Sum(nil))
}
