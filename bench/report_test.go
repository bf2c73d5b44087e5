package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func sampleReport() *report {
	return &report{Rounds: 2, Drain: &section{Workload: workload{Events: 10, Keys: 2}, Reference: "base", Arms: []*armResult{
		{Name: "base", samples: []sample{{Rate: 100}, {Rate: 200}}},
		{Name: "half", samples: []sample{{Rate: 50}, {Rate: 100}}},
		{Name: "liar", samples: []sample{{Rate: 900}, {Rate: 900}}, Verdict: verdict{Lost: 3}},
		{Name: "none", Error: "it did not\nstart"},
	}}, Latency: &latencySection{Rate: 10, Arms: []*latencyResult{{Name: "a", P50: spreadOf([]float64{2}), P99: spreadOf([]float64{400})}, {Name: "b", P50: spreadOf([]float64{0.5}), P99: spreadOf([]float64{3})}}}}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	r := sampleReport()
	if err := r.Drain.summarise(); err != nil {
		t.Fatal(err)
	}
	if half := r.Drain.Arms[1].Ratio; half.Min != 0.5 || half.Max != 0.5 {
		t.Errorf("%+v", half)
	}
}

func TestAnArmThatLosesEventsHasItsSpeedStruckOut(t *testing.T) {
	r := sampleReport()
	if err := r.Drain.summarise(); err != nil {
		t.Fatal(err)
	}
	page := r.markdown()
	for _, want := range []string{"| half | 0.50 (0.50–0.50) |", "| liar | ~~", "3, 0, 0", "| none | did not run: it did not start |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't contain %q:\n%s", want, page)
		}
	}
	dir := t.TempDir()
	if err := r.plots(dir); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "drain.svg"))
	if err != nil || !strings.Contains(string(svg), "half") || strings.Contains(string(svg), "liar") {
		t.Errorf("the plot shows the wrong arms (%v)", err)
	}
	if svg, err = os.ReadFile(filepath.Join(dir, "latency.svg")); err != nil || !strings.Contains(string(svg), "100") {
		t.Errorf("the latency plot has no marks (%v)", err)
	}
}

func TestTheCheckSeesWhatIsLostInvertedOrForeign(t *testing.T) {
	w := workload{Events: 6, Keys: 2, Payload: 100}
	seen, top := map[string][]bool{}, map[string]int{}
	var v verdict
	for _, i := range []int{0, 4, 2, 1, 1} { // key-0: 1, 3, 2 · key-1: 1, 1
		v.record(w.key(i), w.payload(i), seen, top, w)
	}
	v.record("key-0", []byte("x"), seen, top, w)
	if v != (verdict{Inverted: 1, Copies: 1, Foreign: 1}) {
		t.Errorf("%+v", v)
	}
}
