package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// commitFunc commits event i of a workload of latencyKeys keys.
type commitFunc func(ctx context.Context, i int, payload []byte) error

// committers is how many sessions commit: enough that a rate is kept. A key's
// events are all committed by one of them, one after the other, so that their
// order is known.
const committers = 16

// latencyKeys are those of the events.
const latencyKeys = 112

// steadyWorkload numbers the events of a load of which nobody knows how many
// they will be.
var steadyWorkload = workload{Keys: latencyKeys, Payload: 512}

// openLoop commits event i at its time, i intervals after began, whatever became
// of those before, until n are committed or stop is closed. done is told of each
// acknowledgement.
func openLoop(ctx context.Context, commit commitFunc, first, n int, began time.Time, interval time.Duration, stop <-chan struct{}, done func(i int)) (committed int, err error) {
	var queues [committers]chan int
	for w := range queues {
		queues[w] = make(chan int, n/committers+latencyKeys)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	var broken atomic.Bool
	for _, queue := range queues {
		wg.Go(func() {
			for i := range queue {
				if broken.Load() {
					continue
				}
				if err := commit(ctx, first+i, steadyWorkload.payload(first+i)); err != nil {
					broken.Store(true)
					mu.Lock()
					failed = errors.Join(failed, fmt.Errorf("commit event %d: %w", first+i, err))
					mu.Unlock()
					continue
				}
				done(i)
			}
		})
	}
	sent := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
send:
	for ; sent < n && !broken.Load(); sent++ {
		timer.Reset(time.Until(began.Add(time.Duration(sent) * interval)))
		select {
		case <-timer.C:
		case <-stop:
			break send
		case <-ctx.Done():
			break send
		}
		queues[(first+sent)%latencyKeys%committers] <- sent
	}
	for _, queue := range queues {
		close(queue)
	}
	wg.Wait()
	return sent, errors.Join(failed, ctx.Err())
}

// closedLoop is committers that commit one event after the other, until it is
// stopped.
type closedLoop struct {
	committed atomic.Int64
	counts    [latencyKeys]int // of each key, by the worker whose it is
	stop      chan struct{}
	wg        sync.WaitGroup
	mu        sync.Mutex
	failed    error
}

func startClosedLoop(ctx context.Context, commit commitFunc, workers int) *closedLoop {
	l := &closedLoop{stop: make(chan struct{})}
	for w := range workers {
		l.wg.Go(func() {
			for {
				for key := w; key < latencyKeys; key += workers {
					select {
					case <-l.stop:
						return
					default:
					}
					i := l.counts[key]*latencyKeys + key
					if err := commit(ctx, i, steadyWorkload.payload(i)); err != nil {
						l.mu.Lock()
						l.failed = errors.Join(l.failed, err)
						l.mu.Unlock()
						return
					}
					l.counts[key]++
					l.committed.Add(1)
				}
			}
		})
	}
	return l
}

// end stops it, and says what was committed.
func (l *closedLoop) end() (counts, error) {
	close(l.stop)
	l.wg.Wait()
	c := counts{}
	for key, n := range l.counts {
		c[steadyWorkload.key(key)] = n
	}
	return c, l.failed
}

// rate is commits a second over a time.
func (l *closedLoop) rate(ctx context.Context, d time.Duration) float64 {
	before, began := l.committed.Load(), time.Now()
	pause(ctx, d)
	return float64(l.committed.Load()-before) / time.Since(began).Seconds()
}
