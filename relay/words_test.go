package relay

import (
	"strings"
	"testing"
)

func TestOneOfAThingIsNotCalledByThePlural(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"topic t is pinned to 1 partitions already":         "topic t is pinned to 1 partition already",
		"topic t is pinned to 11 partitions already":        "topic t is pinned to 11 partitions already",
		"of the range from seq 2 to 9 there are 1 records":  "of the range from seq 2 to 9 there is 1 record",
		"of the range from seq 2 to 9 there are 21 records": "of the range from seq 2 to 9 there are 21 records",
		"of the range from seq 2 to 9 there are 0 records":  "of the range from seq 2 to 9 there are 0 records",
	} {
		if got := singular(said); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, n := range map[string]int{"0 partitions": 0, "1 partition": 1, "2 partitions": 2} {
		if got := count(n, "partition"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	refusal := unfit(Topic{Name: "t", Partitions: 1}, 5, 1)
	if refusal == nil || !strings.Contains(refusal.Reason, "it has 1 partition, and the relay goes by 5") {
		t.Errorf("%v", refusal)
	}
	refusal = unfit(Topic{Name: "t", Partitions: 4}, 1, 1)
	if refusal == nil || !strings.Contains(refusal.Reason, "it has 4 partitions, and the relay goes by 1,") || !strings.Contains(refusal.Reason, "create it again with 1 partition,") {
		t.Errorf("%v", refusal)
	}
}
