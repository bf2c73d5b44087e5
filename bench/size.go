package main

import "time"

// size is how much of everything is measured.
type size struct {
	Name string
	// Rounds are those of the sections that say nothing else.
	Rounds int
	Drain  workload

	Latency       timing
	LatencyRounds int
	Slice         time.Duration // of an arm of the commit and the wake-up section

	Apply       workload // guarded apply
	ApplyRounds int

	Scaling       int // events
	ScalingRounds int

	Free, Held time.Duration // how long the load runs without and under a snapshot
	HeldRounds int

	Outage time.Duration

	WAL int // events

	Growth     workload // its base
	Duplicates int      // events of a drain that is killed
	KillRounds int
}

// full takes some forty minutes on two cores.
func full() size {
	return size{
		Name: "full", Rounds: 5, Drain: workload{Events: 200_000, Keys: 1000, Payload: 512, Transaction: 1000},
		Latency: timing{rate: 1000, length: 30 * time.Second, warm: 8 * time.Second, idle: 10 * time.Second}, LatencyRounds: 1,
		Slice: time.Second,
		Apply: workload{Events: 100_000, Keys: 10_000, Payload: 256}, ApplyRounds: 5,
		Scaling: 100_000, ScalingRounds: 3,
		Free: 10 * time.Second, Held: time.Minute, HeldRounds: 1,
		Outage:     time.Minute,
		WAL:        20_000,
		Growth:     workload{Events: 100_000, Keys: 1000, Payload: 512, Transaction: 1000},
		Duplicates: 200_000, KillRounds: 2,
	}
}

// quick takes some ten minutes: a first look, not a result.
func quick() size {
	s := full()
	s.Name, s.Rounds, s.LatencyRounds, s.ApplyRounds, s.ScalingRounds, s.KillRounds = "quick", 2, 1, 2, 1, 1
	s.Drain.Events = 30_000
	s.Latency.length, s.Latency.warm, s.Latency.idle = 4*time.Second, 4*time.Second, 3*time.Second
	s.Slice = 500 * time.Millisecond
	s.Apply.Events = 40_000
	s.Scaling = 60_000
	s.Free, s.Held = 3*time.Second, 9*time.Second
	s.Outage = 10 * time.Second
	s.WAL = 4000
	s.Growth.Events = 20_000
	s.Duplicates = 50_000
	return s
}

// smoke takes less than a minute: whether everything can be measured, and about
// where the ratios are.
func smoke() size {
	s := quick()
	s.Name = "smoke"
	s.ApplyRounds = 1
	s.Drain.Events = 15_000
	s.Apply.Events = 30_000
	return s
}
