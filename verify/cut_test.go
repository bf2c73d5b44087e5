package verify_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/verify"
)

// cutting is a log of which retention takes records while it is read.
type cutting struct {
	*memoryLog
	partition int
	after     int   // so many records were read
	to        int64 // where the log begins then
}

var errOutside = errors.New("the offset is outside of the log")

func (c *cutting) Read(ctx context.Context, topic string, partition int, from, to int64, f func(verify.LogRecord) error) error {
	if partition != c.partition {
		return c.memoryLog.Read(ctx, topic, partition, from, to, f)
	}
	if from < c.cut[partition] {
		return errOutside
	}
	n := 0
	return c.memoryLog.Read(ctx, topic, partition, from, to, func(r verify.LogRecord) error {
		if n == c.after && from < c.to {
			log := c.topics[topic][partition]
			c.cut = map[int]int64{partition: c.to}
			for len(log) > 0 && log[0].Offset < c.to {
				log = log[1:]
			}
			c.topics[topic][partition] = log
			return errOutside
		}
		n++
		return f(r)
	})
}

// It goes on all the time, also of a topic that is read last.
func TestWhatRetentionTakesWhileTheTopicsAreReadIsNoDisagreement(t *testing.T) {
	for _, after := range []int{0, 3} {
		for _, to := range []int64{6, 10} {
			t.Run(fmt.Sprintf("after %d to %d", after, to), func(t *testing.T) {
				w := newWorld(t)
				for range 10 {
					w.append("k", "x")
				}
				w.publish()
				w.consume()
				p, _ := w.log.find(t, "k", 1)
				report, all := w.verify(func(c *verify.Config) { c.Log = &cutting{memoryLog: w.log, partition: p, after: after, to: to} })
				if len(all) > 0 {
					t.Errorf("found %v", all)
				}
				if want := int64(after) + 10 - to; report.Records != want || report.Uncovered != to {
					t.Errorf("%d records were read and %d positions not covered, want %d and %d", report.Records, report.Uncovered, want, to)
				}
			})
		}
	}
}

// A consumer may read topics that no outbox has to do with.
func TestTheRecordsOfOthersInATopicOfAConsumersAreNoDisagreement(t *testing.T) {
	w := newWorld(t)
	w.append("k", "x")
	w.publish()
	w.consume()
	w.log.topics["theirs"] = [][]verify.LogRecord{{
		{Offset: 0, Value: []byte("{}")},
		{Offset: 1, Value: []byte("{}"), Headers: []outbox.WireHeader{{Key: "ce_specversion", Value: []byte("1.0")}}},
		{Offset: 2, Value: []byte("{}"), Headers: []outbox.WireHeader{{Key: "ce_fenceseq", Value: []byte("1")}}}, // claims to be of ours
	}}
	w.exec(`insert into fenceline.consumer_offset (consumer, topic, partition, next_offset) values ($1, 'theirs', 0, 3)`, service)
	report, all := w.verify()
	if len(all) != 1 || all[0].Kind != verify.Unreadable || all[0].Where != "theirs/0@2" || report.Foreign != 2 {
		t.Errorf("found %v, %d are of others", all, report.Foreign)
	}
	// In one that is named, or is the outbox's own, they have no business.
	if _, all := w.verify(func(c *verify.Config) { c.Topics = []string{"theirs"} }); len(all) != 3 {
		t.Errorf("found %v", all)
	}
}

// A log that can't be read for another reason ends the comparison.
func TestALogThatCannotBeReadEndsTheComparison(t *testing.T) {
	w := newWorld(t)
	w.append("k", "x", "y")
	w.publish()
	_, err := verify.Run(t.Context(), verify.Config{Producer: w.pool, Log: unreadableLog{w.log}, Dir: t.TempDir()})
	if !errors.Is(err, errOutside) {
		t.Errorf("got %v", err)
	}
}

type unreadableLog struct{ *memoryLog }

func (unreadableLog) Read(context.Context, string, int, int64, int64, func(verify.LogRecord) error) error {
	return errOutside
}
