package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// figures is a section of the report: arms, and for each a figure in each
// column.
type figures struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Text says what was done, and how to read the columns.
	Text    string       `json:"text"`
	Rounds  int          `json:"rounds"`
	Columns []column     `json:"columns"`
	Loads   []string     `json:"load_average_by_round"`
	Arms    []*armFigure `json:"arms"`
	// Ours says that all arms are ours, in one set-up or another.
	Ours bool `json:"ours,omitempty"`
	// Bars is the column that the plot shows, if any.
	Bars string `json:"bars,omitempty"`
	// Curves are shown in a plot of their own.
	Curves *curves `json:"curves,omitempty"`
}

// column is a figure that each arm has.
type column struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	// Digits are those behind the point.
	Digits int `json:"digits"`
	// RatioOf is the key of the figure that is divided by that of the arm's
	// reference in the same round; empty for a figure that is measured.
	RatioOf string `json:"ratio_of,omitempty"`
	// Brief leaves smallest and largest out of the page.
	Brief bool `json:"brief,omitempty"`
}

// armFigure is one row.
type armFigure struct {
	Name    string            `json:"name"`
	Note    string            `json:"note"`
	Of      string            `json:"ratio_to,omitempty"`
	Error   string            `json:"error,omitempty"`
	Figures map[string]spread `json:"figures"`
	Verdict *verdict          `json:"verdict,omitempty"`
	rounds  []map[string]float64
}

// trial is an arm of a section of figures.
type trial struct {
	name, note string
	// of is the arm that its ratios are to.
	of  string
	run func(ctx context.Context) (result, error)
}

// result is what an arm gave in one round.
type result struct {
	figures map[string]float64
	// verdict is what its output says, where there is one to check.
	verdict *verdict
	curve   []point
}

// measure runs the arms in turn, round after round. An arm that fails is shown
// with its error and takes part in no further round.
func (f *figures) measure(ctx context.Context, trials []trial, rounds int, say func(string, ...any)) error {
	f.Rounds = rounds
	for _, t := range trials {
		f.Arms = append(f.Arms, &armFigure{Name: t.name, Note: t.note, Of: t.of})
	}
	for round := range rounds {
		f.Loads = append(f.Loads, load())
		for i, t := range trials {
			arm := f.Arms[i]
			if arm.Error != "" {
				continue
			}
			res, err := t.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				arm.Error = err.Error()
				say("%s, round %d  %-34s failed: %v", f.ID, round+1, t.name, err)
				continue
			}
			arm.rounds = append(arm.rounds, res.figures)
			if res.verdict != nil {
				if arm.Verdict == nil {
					arm.Verdict = &verdict{}
				}
				arm.Verdict.add(*res.verdict)
			}
			if f.Curves != nil && round == 0 && res.curve != nil {
				f.Curves.Lines = append(f.Curves.Lines, line{t.name, res.curve})
			}
			say("%s, round %d  %-34s %s", f.ID, round+1, t.name, f.brief(res))
		}
	}
	f.summarise()
	return nil
}

// brief is a round's result in one line.
func (f *figures) brief(res result) string {
	var parts []string
	for _, c := range f.Columns {
		if v, ok := res.figures[c.Key]; ok {
			parts = append(parts, fmt.Sprintf("%s %.*f", c.Title, c.Digits, v))
		}
	}
	if v := res.verdict; v != nil && !v.ok() {
		parts = append(parts, fmt.Sprintf("lost %d, inverted %d", v.Lost, v.Inverted))
	}
	return strings.Join(parts, ", ")
}

// summarise makes the spreads, and the ratios of each round.
func (f *figures) summarise() {
	for _, arm := range f.Arms {
		arm.Figures = map[string]spread{}
		var base []map[string]float64
		if i := slices.IndexFunc(f.Arms, func(a *armFigure) bool { return a.Name == arm.Of }); i >= 0 {
			base = f.Arms[i].rounds
		}
		for _, c := range f.Columns {
			var all []float64
			for n, values := range arm.rounds {
				switch {
				case c.RatioOf == "":
					if v, ok := values[c.Key]; ok {
						all = append(all, v)
					}
				case n < len(base) && base[n][c.RatioOf] > 0:
					all = append(all, values[c.RatioOf]/base[n][c.RatioOf])
				}
			}
			if len(all) > 0 {
				arm.Figures[c.Key] = spreadOf(all)
			}
		}
	}
}

// sound says that every arm ran and that its output is right.
func (f *figures) sound() error {
	for _, a := range f.Arms {
		if a.Error != "" {
			return fmt.Errorf("%s: %s did not run: %s", f.ID, a.Name, a.Error)
		}
		if a.Verdict != nil && !a.Verdict.ok() {
			return fmt.Errorf("%s: %s: the output is wrong: %+v", f.ID, a.Name, *a.Verdict)
		}
	}
	return nil
}

// curves are lines over a common axis.
type curves struct {
	X           string `json:"x"`
	Y           string `json:"y"`
	Logarithmic bool   `json:"logarithmic,omitempty"`
	// Percentiles says that X is one, which the plot spreads out.
	Percentiles bool   `json:"percentiles,omitempty"`
	Lines       []line `json:"lines"`
}

type line struct {
	Name   string  `json:"name"`
	Points []point `json:"points"`
}

type point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}
