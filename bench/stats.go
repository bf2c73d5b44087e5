package main

import (
	"cmp"
	"slices"
)

// spread is a figure over the rounds.
type spread struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	All    []float64 `json:"rounds"`
}

func spreadOf(v []float64) spread {
	if len(v) == 0 {
		return spread{}
	}
	sorted := slices.Clone(v)
	slices.Sort(sorted)
	m := sorted[len(sorted)/2]
	if len(sorted)%2 == 0 {
		m = (m + sorted[len(sorted)/2-1]) / 2
	}
	return spread{Median: m, Min: sorted[0], Max: sorted[len(sorted)-1], All: v}
}

// percentile of sorted values, by nearest rank.
func percentile[T cmp.Ordered](sorted []T, p float64) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	i := int(p/100*float64(len(sorted))+0.9999999) - 1
	return sorted[max(0, min(i, len(sorted)-1))]
}
