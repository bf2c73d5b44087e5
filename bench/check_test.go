package main

import "testing"

func TestTheCheckSeesWhatIsLostInvertedOrForeign(t *testing.T) {
	w := workload{Events: 6, Keys: 2, Payload: 100}
	r := reading{want: w.counts(), seen: map[string][]bool{}, top: map[string]int{}}
	for _, i := range []int{0, 4, 2, 1, 1} { // key-0: 1, 3, 2 · key-1: 1, 1, and never 2 and 3
		r.record(w.key(i), w.payload(i))
	}
	r.record("key-0", []byte("x"))
	r.record("key-9", w.payload(0))
	if v := r.verdict(); v != (verdict{Lost: 2, Inverted: 1, Copies: 1, Foreign: 2}) {
		t.Errorf("%+v", v)
	}
}

func TestAWorkloadKnowsHowManyEventsEachKeyHas(t *testing.T) {
	got := workload{Events: 5, Keys: 3}.counts()
	if len(got) != 3 || got["key-0"] != 2 || got["key-1"] != 2 || got["key-2"] != 1 {
		t.Errorf("%v", got)
	}
}
