// Package verify compares what each part of the chain says, read from where it
// keeps it, and lists every disagreement.
//
//	report, err := verify.Run(ctx, verify.Config{
//		Producer:  pool,
//		Log:       log,
//		Consumers: []verify.Consumer{{Name: "quake-report", Pool: theirs}},
//		Found:     func(f verify.Finding) { fmt.Println(f) },
//	})
//	if err == nil && report.Total() > 0 { … }
//
// It only reads, and may run beside everything else.
//
// # What it reads, and in which order
//
// The order is what makes a moving system comparable: whoever is read later
// knows at least what the one before has promised.
//
//  1. The relay's cursors, forks and held streams, in one statement. What is
//     behind them is in Kafka from now on.
//  2. The topics, up to the ends that they have then. Whatever is in them was
//     committed before, so the outbox must know it.
//  3. The consumers' offsets, then their guards and what they keep aside. A
//     guard and the offset behind it move in one transaction, so a guard that is
//     read later is not behind the offset.
//  4. Outbox, receipts, fences and heads, in one snapshot. It is held for as
//     long as reading the outbox takes.
//
// # What it compares
//
// See [Kind] for the list. All of it holds only over the span that each part
// still has: receipts are swept, partitions of the outbox dropped, logs cut at
// their start. What lies outside of the span is counted as uncovered, and no
// finding is made of it.
//
// # Memory
//
// What was read is written, without payloads, to files in a temporary
// directory: keys are spread over buckets by hash, and one bucket at a time is
// compared (a hash join that spills, as in Kitsuregawa's GRACE). So memory
// depends on Config.BucketEvents, whatever the amount of events; the disk holds
// about 150 bytes for each row, record and guard. A stream is compared as a
// whole, so one with many millions of events takes memory of its own.
package verify
