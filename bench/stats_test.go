package main

import (
	"slices"
	"testing"
)

func TestASpreadIsTheMedianWithTheSmallestAndTheLargest(t *testing.T) {
	for _, c := range []struct {
		in                []float64
		median, low, high float64
	}{
		{[]float64{3, 1, 2}, 2, 1, 3},
		{[]float64{4, 1, 2, 3}, 2.5, 1, 4},
		{[]float64{7}, 7, 7, 7},
		{nil, 0, 0, 0},
	} {
		s := spreadOf(c.in)
		if s.Median != c.median || s.Min != c.low || s.Max != c.high || !slices.Equal(s.All, c.in) {
			t.Errorf("%v gives %+v", c.in, s)
		}
	}
}

func TestAPercentileIsTheNearestRank(t *testing.T) {
	var v []int
	for i := range 100 {
		v = append(v, i+1)
	}
	for p, want := range map[float64]int{0: 1, 50: 50, 99: 99, 99.5: 100, 100: 100} {
		if got := percentile(v, p); got != want {
			t.Errorf("p%v is %d, not %d", p, got, want)
		}
	}
}
