package main

import (
	"fmt"
	"strings"
)

// What -smoke runs: the arms that say whether a change has made something of ours
// much slower, each beside what it is compared with. Its ratios are information:
// on a machine that others share they say little about one run.
const (
	smokeSections = "drain,commit,apply"
	smokeArms     = "fenceline,naive,hand-written fence,inbox table of ids"
)

// ratios is the section in a few lines.
func (f *figures) ratios() string {
	var b strings.Builder
	for _, c := range f.Columns {
		if c.Key != f.Bars {
			continue
		}
		for _, a := range f.Arms {
			if s, ok := a.Figures[c.Key]; ok && a.Name != a.Of {
				fmt.Fprintf(&b, "%-8s %-34s %s %s\n", f.ID, a.Name, c.text(s), c.Title)
			}
		}
	}
	return b.String()
}
