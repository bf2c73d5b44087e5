package main

import (
	"testing"
	"time"
)

func TestTheRateOfABacklogsMiddleLeavesOutItsStartAndItsEnd(t *testing.T) {
	start := time.Unix(0, 0)
	var m milestones
	for _, seen := range []struct {
		after time.Duration
		got   int64
	}{
		{0, 0}, {time.Second, 4}, // the first
		{3 * time.Second, 100}, {4 * time.Second, 500}, {5 * time.Second, 900}, {9 * time.Second, 1000},
	} {
		m.pass(start.Add(seen.after), seen.got, 1000)
	}
	if got := m.rate(1, 2); got != 400 {
		t.Errorf("800 events in the two seconds of the middle are %v a second", got)
	}
	if got := m.rate(0, 3); got != 124.5 {
		t.Errorf("996 events in the eight seconds from the first to the last are %v a second", got)
	}
}
