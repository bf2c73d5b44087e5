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

// counts is how many events each key has; they are numbered from 1.
type counts map[string]int

func (w workload) counts() counts {
	c := make(counts, w.Keys)
	for i := range min(w.Keys, w.Events) {
		c[w.key(i)] = (w.Events-1-i)/w.Keys + 1
	}
	return c
}

// check reads a topic back, and compares it with what should be there.
func (s *stack) check(ctx context.Context, topic string, want counts) (verdict, error) {
	v := verdict{}
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
	read := reading{want: want, seen: make(map[string][]bool, len(want)), top: make(map[string]int, len(want))}
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
				read.record(string(r.Key), r.Value)
				if r.Offset+1 >= left[r.Partition] {
					delete(left, r.Partition)
				}
			})
		}
	}
	return read.verdict(), nil
}

// reading is what has been read back so far.
type reading struct {
	want         counts
	seen         map[string][]bool
	top          map[string]int // the latest of each key
	verdictSoFar verdict
}

func (r *reading) record(key string, value []byte) {
	v := &r.verdictSoFar
	n, ok := seqOf(value)
	if !ok || n < 1 || n > r.want[key] {
		v.Foreign++
		return
	}
	s := r.seen[key]
	if s == nil {
		s = make([]bool, r.want[key]+1)
		r.seen[key] = s
	}
	switch {
	case s[n]:
		v.Copies++
	case n < r.top[key]:
		v.Inverted++
	}
	s[n] = true
	r.top[key] = max(r.top[key], n)
}

func (r *reading) verdict() verdict {
	v := r.verdictSoFar
	for key, n := range r.want {
		v.Lost += n
		for _, there := range r.seen[key] {
			if there {
				v.Lost--
			}
		}
	}
	return v
}

// seqOf is the number that a payload says it has.
func seqOf(value []byte) (n int, ok bool) {
	if len(value) < seqAt+seqDigits {
		return 0, false
	}
	n, err := strconv.Atoi(string(value[seqAt : seqAt+seqDigits]))
	return n, err == nil
}
