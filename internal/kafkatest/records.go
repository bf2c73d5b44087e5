package kafkatest

import (
	"context"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Records reads everything that a topic has at this moment: partition by partition, each in order of offset. Control
// records are left out; records of transactions that are open or were aborted are not. The reader is another client
// than the ones under test, so both can't be wrong in the same way.
func Records(t testing.TB, addr, topic string) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	admin := Admin(t, addr)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		t.Fatalf("kafkatest: start offsets of %s: %v", topic, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatalf("kafkatest: end offsets of %s: %v", topic, err)
	}

	from := map[int32]kgo.Offset{}
	unread := map[int32]int64{} // partition → its end
	for p, end := range ends[topic] {
		if start := starts[topic][p].Offset; start < end.Offset {
			from[p] = kgo.NewOffset().At(start)
			unread[p] = end.Offset
		}
	}
	if len(unread) == 0 {
		return nil
	}
	// Control records are asked for, since one may be the last before the end.
	reader := client(t, addr, kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	defer reader.Close()
	var all []*kgo.Record
	for len(unread) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("kafkatest: read %s (partitions not read to their end: %v): %v", topic, unread, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, ok := unread[r.Partition]
			if !ok {
				return // appended since
			}
			if !r.Attrs.IsControl() && r.Offset < end {
				all = append(all, r)
			}
			if r.Offset >= end-1 {
				delete(unread, r.Partition)
			}
		})
	}
	slices.SortFunc(all, func(a, b *kgo.Record) int {
		if a.Partition != b.Partition {
			return int(a.Partition - b.Partition)
		}
		return int(a.Offset - b.Offset)
	})
	return all
}

// Header returns the value of a record's header; ok is false if the record has none of that name.
func Header(r *kgo.Record, name string) (value string, ok bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}
