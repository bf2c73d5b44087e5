package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// outageRate is how many events a second are committed before, during and after
// the outage.
const outageRate = 1000

// outageArms are those of the latency section that are tried.
var outageArms = []string{"fenceline", "naive relay", "Debezium, tuned"}

// outage kills the broker under a steady load, starts it again, and sees how long
// the relay takes to have caught up.
func (s *stack) outage(ctx context.Context, a *latencyArm, n int, length time.Duration, say func(string, ...any)) (_ result, err error) {
	at, err := s.place(ctx, "outage", n, a.prepare)
	if err != nil {
		return result{}, err
	}
	defer at.leave()
	commit, done, err := a.commits(ctx, at.dsn, at.topic)
	if err != nil {
		return result{}, err
	}
	defer done()
	pid, stopRelay, err := s.carry(ctx, a, at.job(), say)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, stopRelay()) }()

	var committed atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, 1)
	sent := 0
	go func() {
		var err error
		most := outageRate * int((length+10*time.Minute)/time.Second)
		sent, err = openLoop(ctx, commit, 0, most, time.Now(), time.Second/outageRate, stop, func(int) { committed.Add(1) })
		ended <- err
	}()
	res, failed := s.breakDown(ctx, at.topic, pid, length, &committed)
	close(stop)
	if err := errors.Join(failed, <-ended); err != nil {
		return result{}, err
	}
	res.figures["peak"] = float64(peakOf(pid)) / (1 << 20)
	w := steadyWorkload
	w.Events = sent
	v, err := s.checkWhenQuiet(ctx, at.topic, w.counts())
	res.verdict = &v
	res.figures["copies"] = float64(v.Copies)
	return res, err
}

// breakDown is the outage itself. A relay has caught up when what it is behind
// is no more than a quarter of a second's events.
func (s *stack) breakDown(ctx context.Context, topic string, relay int, length time.Duration, committed *atomic.Int64) (result, error) {
	behind := func(most time.Duration, allowed int64) (time.Time, error) {
		for patience := time.Now().Add(most); ; {
			// A broker that has just come back may refuse a first question.
			asked, cancel := context.WithTimeout(ctx, 5*time.Second)
			lag := committed.Load()
			got, err := s.arrived(asked, topic)
			cancel()
			lag -= got
			switch {
			case ctx.Err() != nil:
				return time.Time{}, ctx.Err()
			case err == nil && got > 0 && lag <= allowed:
				return time.Now(), nil
			case !alive(relay):
				return time.Time{}, errors.New("the relay has ended")
			case time.Now().After(patience):
				return time.Time{}, errors.Join(fmt.Errorf("the relay is %d events behind after %v", lag, most), err)
			}
			pause(ctx, 20*time.Millisecond)
		}
	}
	if _, err := behind(time.Minute, outageRate/4); err != nil {
		return result{}, err
	}
	pause(ctx, 3*time.Second) // so that it flows evenly
	down := time.Now()
	if err := s.kafka.Kill(ctx); err != nil {
		return result{}, err
	}
	pause(ctx, length)
	if err := s.kafka.Restart(ctx); err != nil {
		return result{}, err
	}
	up := time.Now()
	backlog := committed.Load()
	if got, err := s.arrived(ctx, topic); err == nil {
		backlog -= got
	}
	at, err := behind(2*time.Minute+length, outageRate/4)
	if err != nil {
		return result{}, err
	}
	took := at.Sub(up)
	return result{figures: map[string]float64{"took": took.Seconds(), "ratio": took.Seconds() / up.Sub(down).Seconds(), "backlog": float64(backlog)}}, nil
}

func (b *bench) outage(ctx context.Context) (*figures, error) {
	f := &figures{ID: "outage", Title: "After an outage of the broker", Bars: "ratio",
		Text: fmt.Sprintf("%d events a second are committed all along. The broker is killed, and %.0f s later started again on its data. Timed is from when it serves clients again until the relay is less than a quarter of a second behind.", outageRate, b.size.Outage.Seconds()),
		Columns: []column{{Key: "ratio", Title: "caught up, in outages", Digits: 2}, {Key: "took", Title: "seconds", Digits: 1, Brief: true}, {Key: "backlog", Title: "backlog, events", Brief: true},
			{Key: "peak", Title: "peak MiB", Brief: true}, {Key: "copies", Title: "copies", Brief: true}}}
	var trials []trial
	n := 0
	for i := range latencyArms {
		arm := &latencyArms[i]
		for _, name := range outageArms {
			if arm.name == name && b.picked(name, "") {
				trials = append(trials, trial{name, arm.note, "", func(ctx context.Context) (result, error) {
					n++
					return b.stack.outage(ctx, arm, n, b.size.Outage, b.say)
				}})
			}
		}
	}
	return f, f.measure(ctx, trials, 1, b.say)
}
