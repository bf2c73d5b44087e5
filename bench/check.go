package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// verdict is what an arm's topic says of it.
type verdict struct {
	Lost     int `json:"lost"`
	Inverted int `json:"inverted"` // first copies behind a later event of their key
	Copies   int `json:"copies"`   // which at least once allows
	Foreign  int `json:"foreign"`  // records that are none of the workload
}

func (v verdict) ok() bool { return v.Lost == 0 && v.Inverted == 0 && v.Foreign == 0 }

// add merges the verdicts of rounds.
func (v *verdict) add(o verdict) {
	v.Lost, v.Inverted, v.Copies, v.Foreign = v.Lost+o.Lost, v.Inverted+o.Inverted, v.Copies+o.Copies, v.Foreign+o.Foreign
}

// check reads a topic back, and compares it with the workload.
func (s *stack) check(ctx context.Context, topic string, w workload) (verdict, error) {
	var v verdict
	ends, err := s.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return v, err
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition], from[o.Partition] = o.Offset, kgo.NewOffset().AtStart()
		}
	})
	seen := make(map[string][]bool, w.Keys)
	top := make(map[string]int, w.Keys)
	if len(left) > 0 {
		reader, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchMaxBytes(16<<20))
		if err != nil {
			return v, err
		}
		defer reader.Close()
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		for len(left) > 0 {
			fetches := reader.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return v, fmt.Errorf("read %s back: %w", topic, err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				v.record(string(r.Key), r.Value, seen, top, w)
				if r.Offset+1 >= left[r.Partition] {
					delete(left, r.Partition)
				}
			})
		}
	}
	there := 0
	for _, s := range seen {
		for _, b := range s {
			if b {
				there++
			}
		}
	}
	v.Lost = w.Events - there
	return v, nil
}

func (v *verdict) record(key string, value []byte, seen map[string][]bool, top map[string]int, w workload) {
	if len(value) < seqAt+seqDigits {
		v.Foreign++
		return
	}
	n, err := strconv.Atoi(string(value[seqAt : seqAt+seqDigits]))
	each := (w.Events + w.Keys - 1) / w.Keys
	if err != nil || n < 1 || n > each {
		v.Foreign++
		return
	}
	s := seen[key]
	if s == nil {
		s = make([]bool, each+1)
		seen[key] = s
	}
	switch {
	case s[n]:
		v.Copies++
	case n < top[key]:
		v.Inverted++
	}
	s[n] = true
	top[key] = max(top[key], n)
}
