package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rehearsed gives a section whose arms give what they are told.
func rehearsed(t *testing.T) *figures {
	t.Helper()
	f := &figures{ID: "drain", Title: "Drain", Text: "As said.", Bars: "ratio",
		Curves:  &curves{X: "x", Y: "y", Logarithmic: true},
		Columns: []column{{Key: "ratio", Title: "of base", Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "events/s", Brief: true}}}
	arm := func(name string, v verdict, rates ...float64) trial {
		round := 0
		return trial{name, "a note", "base", func(context.Context) (result, error) {
			round++
			return result{figures: map[string]float64{"rate": rates[round-1]}, verdict: &v, curve: []point{{1, 2}, {2, 400}}}, nil
		}}
	}
	calls := 0
	none := trial{"none", "a note", "base", func(context.Context) (result, error) {
		calls++
		return result{}, errors.New("it did not\nstart | at all")
	}}
	trials := []trial{arm("base", verdict{}, 100, 200), arm("half", verdict{Copies: 7}, 50, 100), arm("liar", verdict{Lost: 3}, 900, 900), none}
	if err := f.measure(t.Context(), trials, 2, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	if calls != 1 {
		t.Errorf("an arm that failed ran %d times", calls)
	}
	return f
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	if half := rehearsed(t).Arms[1].Figures["ratio"]; half.Min != 0.5 || half.Max != 0.5 || len(half.All) != 2 {
		t.Errorf("%+v", half)
	}
}

func TestAnArmThatLosesEventsHasItsSpeedStruckOut(t *testing.T) {
	f := rehearsed(t)
	page := f.markdown()
	for _, want := range []string{"| half | 0.50 (0.50–0.50) | 75 | 0, 0, 14 |", "| liar | ~~6.75 (4.50–9.00)~~ | ~~900~~ | 6, 0, 0 |", `| none | did not run: it did not start \| at all | | |`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't contain %q:\n%s", want, page)
		}
	}
	dir := t.TempDir()
	if err := f.plots(dir); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "drain.svg"))
	if err != nil || !strings.Contains(string(svg), "half") || strings.Contains(string(svg), "liar") {
		t.Errorf("the plot shows the wrong arms (%v)", err)
	}
	if svg, err = os.ReadFile(filepath.Join(dir, "drain-curves.svg")); err != nil || !strings.Contains(string(svg), "100") {
		t.Errorf("the curves have no marks (%v)", err)
	}
}

func TestARunIsSoundOnlyIfEveryArmRanAndIsRight(t *testing.T) {
	f := rehearsed(t)
	if err := f.sound(); err == nil || !strings.Contains(err.Error(), "liar") {
		t.Errorf("an arm that lost events: %v", err)
	}
	f.Arms = append(f.Arms[:2], f.Arms[3])
	if err := f.sound(); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("an arm that did not run: %v", err)
	}
	f.Arms = f.Arms[:2]
	if err := f.sound(); err != nil {
		t.Errorf("slow, and right: %v", err)
	}
	if got := f.ratios(); !strings.Contains(got, "half") || !strings.Contains(got, "0.50 (0.50–0.50) of base") || strings.Count(got, "\n") != 1 {
		t.Errorf("the ratios are\n%s", got)
	}
}

func TestThePageIsTheSameWhenItIsWrittenAgainFromItsFigures(t *testing.T) {
	r := &report{Command: "make bench", Size: "quick", Sections: []*figures{rehearsed(t)}, Failed: map[string]string{"wal": "no disk"}}
	dir := t.TempDir()
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := readReport(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.markdown(), r.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, want := range []string{"where we lose", "no result", "This section could not be measured: no disk", "![Drain](benchmark/drain.svg)"} {
		if !strings.Contains(r.markdown(), want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
}

func TestWhatIsSaidAtAGlanceLeavesOutWrongOutput(t *testing.T) {
	f := &figures{ID: "drain", Columns: []column{{Key: "ratio", Digits: 2}, {Key: "rate"}, {Key: "peak"}}, Arms: []*armFigure{
		{Name: "fenceline", Figures: map[string]spread{"ratio": spreadOf([]float64{0.8}), "rate": spreadOf([]float64{800}), "peak": spreadOf([]float64{30})}},
		{Name: "Debezium, tuned", Figures: map[string]spread{"ratio": spreadOf([]float64{0.1}), "rate": spreadOf([]float64{100}), "peak": spreadOf([]float64{600})}},
		{Name: "naive relay", Verdict: &verdict{Inverted: 1}, Figures: map[string]spread{"ratio": spreadOf([]float64{0.9})}},
	}}
	r := &report{Sections: []*figures{f}}
	for _, want := range []string{"| drain, to a bare Kafka client | 0.80 | naive relay: not measured; ", "Debezium, tuned: 0.10 |", "| drain, times Debezium tuned and warm | 8.0 |"} {
		if !strings.Contains(r.summary(), want) {
			t.Errorf("the summary doesn't say %q:\n%s", want, r.summary())
		}
	}
	f.Arms[0].Verdict = &verdict{Lost: 1}
	if s := r.summary(); s != "" {
		t.Errorf("it boasts of a drain that lost an event:\n%s", s)
	}
}
