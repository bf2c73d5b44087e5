package main

import (
	"fmt"
	"strings"
)

// headline is a line of the page's first table: a figure of ours, and beside it
// one that says what it means.
type headline struct {
	what            string
	section, column string
	ours            string
	peers           []string
	// over makes the figure ours divided by the first peer's, of medians, where the
	// section's own ratio is to another arm.
	over bool
}

var headlines = []headline{
	{"drain, to a bare Kafka client", "drain", "ratio", "fenceline", []string{"naive relay", "watermill forwarder", "Debezium, tuned"}, false},
	{"drain, times Debezium tuned and warm", "drain", "rate", "fenceline", []string{"Debezium, tuned"}, true},
	{"peak memory of a drain, MiB", "drain", "peak", "fenceline", []string{"Debezium, tuned"}, false},
	{"commit to consumer, p50 in ms", "latency", "p50", "fenceline", []string{"Debezium, lowest latency", "Debezium, default"}, false},
	{"the same, p99", "latency", "p99", "fenceline", []string{"Debezium, lowest latency", "Debezium, default"}, false},
	{"commit to the consumer's effect, p50 in ms", "latency", "p50", "fenceline, to the effect", nil, false},
	{"the same, p99", "latency", "p99", "fenceline, to the effect", nil, false},
	{"idle, % of a core", "latency", "idle", "fenceline", []string{"Debezium, lowest latency"}, false},
	{"fenced commit in a batch, to a plain one", "commit", "ratio", "fenceline, batch", []string{"hand-written fence"}, false},
	{"fenced commit around a callback", "commit", "ratio", "fenceline, callback", []string{"hand-written fence"}, false},
	{"one hot key, to a plain transaction", "commit", "ratio", "one hot key: fenceline", []string{"one hot key: hand-written fence"}, false},
	{"guarded apply, to none", "apply", "ratio", "fenceline", []string{"inbox table of ids", "inbox, one statement a batch"}, false},
	{"four relays, to one, in the middle of a drain", "scaling", "ratio", "four", nil, false},
	{"reads under a held snapshot, to free", "held", "reads", "fenceline", []string{"SKIP LOCKED, delete", "SKIP LOCKED, mark published"}, false},
	{"commits under a held snapshot, to free", "held", "commits", "fenceline", []string{"SKIP LOCKED, delete", "SKIP LOCKED, mark published"}, false},
	{"catching up after an outage, in outages", "outage", "ratio", "fenceline", []string{"Debezium, tuned"}, false},
	{"commits with waking, to without", "wake", "ratio", "fenceline, batch, Waker", []string{"plain, NOTIFY in the transaction"}, false},
	{"bytes of WAL an event, outbox alone", "wal", "total", "fenceline, outbox alone", []string{"mark published, delete", "delete"}, false},
	{"copies after a kill in a drain", "duplicates", "copies", "fenceline", []string{"Debezium, tuned"}, false},
}

// summary is the table at the top of the page: what was measured of it.
func (r *report) summary() string {
	var b strings.Builder
	for _, h := range headlines {
		f := r.section(h.section)
		if f == nil {
			continue
		}
		ours, ok := f.figure(h.ours, h.column)
		if !ok {
			continue
		}
		var beside []string
		for _, p := range h.peers {
			v, ok := f.figure(p, h.column)
			switch {
			case !ok:
				beside = append(beside, p+": not measured")
			case h.over:
				ours = fmt.Sprintf("%.1f", f.median(h.ours, h.column)/f.median(p, h.column))
			default:
				beside = append(beside, p+": "+v)
			}
		}
		if h.over && len(beside) > 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", h.what, ours, strings.Join(beside, "; "))
	}
	if b.Len() == 0 {
		return ""
	}
	return "| | fenceline | beside it |\n| --- | --- | --- |\n" + b.String()
}

// figure is an arm's figure as the page shows it, if its output was right.
func (f *figures) figure(arm, key string) (string, bool) {
	for _, c := range f.Columns {
		if c.Key == key {
			if a := f.arm(arm); a != nil {
				return c.text(a.Figures[key]), true
			}
		}
	}
	return "", false
}

func (f *figures) median(arm, key string) float64 {
	if a := f.arm(arm); a != nil {
		return a.Figures[key].Median
	}
	return 0
}

// arm is one that ran and whose output was right.
func (f *figures) arm(name string) *armFigure {
	for _, a := range f.Arms {
		if a.Name == name && a.Error == "" && (a.Verdict == nil || a.Verdict.ok()) {
			return a
		}
	}
	return nil
}
