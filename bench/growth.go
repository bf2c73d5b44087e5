package main

import (
	"context"
	"fmt"
)

// growth is the same drain with ten times the backlog, ten times the keys, and a
// hundred times the partitions.
func (b *bench) growth(ctx context.Context) (*figures, error) {
	base := b.size.Growth
	more, keys := base, base
	more.Events *= 10
	keys.Keys *= 10
	f := &figures{ID: "growth", Title: "Growth", Bars: "ratio", Ours: true,
		Text: fmt.Sprintf("The drain of a backlog of %d events of %d keys into %d partitions, and the same with more of one of them.", base.Events, base.Keys, partitions),
		Columns: []column{{Key: "ratio", Title: "rate, to the base", Digits: 2, RatioOf: "rate"}, {Key: "grown", Title: "memory, to the base", Digits: 2, RatioOf: "peak"}, {Key: "rate", Title: "events/s", Brief: true}, {Key: "peak", Title: "peak MiB", Brief: true},
			{Key: "client", Title: "client CPU µs an event", Digits: 1, Brief: true}, {Key: "server", Title: "PostgreSQL", Digits: 1, Brief: true}, {Key: "broker", Title: "Kafka", Digits: 1, Brief: true}}}
	arm := findArm("fenceline")
	const reference = "base"
	var trials []trial
	n := 0
	add := func(name string, w workload, partitions int) {
		n++
		d := &drainer{stack: b.stack, say: b.say, name: fmt.Sprintf("growth_%d", n), w: w, partitions: partitions}
		trials = append(trials, trial{name, "fenceline, relay run, as it comes", reference, func(ctx context.Context) (result, error) {
			sm, err := d.run(ctx, arm)
			return result{verdict: &sm.Verdict, figures: sm.figures()}, err
		}})
	}
	add(reference, base, partitions)
	add("ten times the backlog", more, partitions)
	add("ten times the keys", keys, partitions)
	add("a hundred times the partitions", base, 100*partitions)
	return f, f.measure(ctx, trials, 1, b.say)
}
