package kafkatest

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Action is what happens to a request or its answer.
type Action int

const (
	// LoseAnswer lets the request reach the broker, throws the answer away and closes the connection: the broker
	// has done it and the client doesn't know.
	LoseAnswer Action = iota
	// LoseRequest closes the connection before the request reaches the broker. To the client it looks the same.
	LoseRequest
	// HoldAnswer lets the request reach the broker and holds the answer back until Release, or for ever: the client
	// runs into its own timeout.
	HoldAnswer
	// HoldRequest holds the request back until Release: it reaches the broker late, though its client may be long
	// gone.
	HoldRequest
)

// A Fault says what a proxy does to whom. It is used once, see Proxy.Inject.
type Fault struct {
	// Key is the kind of request. Defaults to kmsg.Produce.
	Key kmsg.Key
	// When chooses among the requests of that kind. It must not block. Defaults to all.
	When func(kmsg.Request) bool
	// Do is what happens. Defaults to LoseAnswer.
	Do Action
	// Count is how many requests it happens to; -1 is all until Remove. Defaults to 1.
	Count int

	proxy    *Proxy
	mu       sync.Mutex
	hits     int // requests chosen
	done     int // of those, the ones that the broker has answered
	removed  bool
	once     sync.Once
	released chan struct{}
}

// Inject makes the proxy do f from now on. Faults are asked in the order in which they were injected; the first that
// wants a request has it. The returned Fault is f.
func (p *Proxy) Inject(f *Fault) *Fault {
	f.proxy = p
	f.released = make(chan struct{})
	if f.Count == 0 {
		f.Count = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Hits is how many requests the fault has chosen so far.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Remove lets all further requests pass. What is held stays held.
func (f *Fault) Remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = true
}

// Release lets go of everything that is held, and holds nothing any more.
func (f *Fault) Release() { f.once.Do(func() { close(f.released) }) }

// Wait waits until the fault has chosen n requests. It fails the test after thirty seconds.
func (f *Fault) Wait(t testing.TB, n int) {
	t.Helper()
	f.wait(t, "chosen", n, func() int { return f.hits })
}

// WaitAnswered waits until the broker has answered n of the chosen requests, so that what they asked for is done,
// though their client doesn't know. It fails the test after thirty seconds.
func (f *Fault) WaitAnswered(t testing.TB, n int) {
	t.Helper()
	f.wait(t, "answered", n, func() int { return f.done })
}

func (f *Fault) wait(t testing.TB, what string, n int, count func() int) {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	for {
		f.mu.Lock()
		got := count()
		f.mu.Unlock()
		if got >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("kafkatest: proxy fault: %d requests %s after %s, waited for %d", got, what, waitTimeout, n)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (f *Fault) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done++
}

func (p *Proxy) faultsFor(key int16) []*Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults []*Fault
	for _, f := range p.faults {
		if f.Key.Int16() == key {
			faults = append(faults, f)
		}
	}
	return faults
}

// hit returns the fault that happens to the request, if any.
func hit(faults []*Fault, request kmsg.Request) *Fault {
	for _, f := range faults {
		f.mu.Lock()
		takes := !f.removed && (f.Count < 0 || f.hits < f.Count) && (f.When == nil || f.When(request))
		if takes {
			f.hits++
		}
		f.mu.Unlock()
		if takes {
			return f
		}
	}
	return nil
}

// ToTopic chooses produce requests that carry records for a topic, by its name: those of kafka-go. Since version 13 of
// the request, which franz-go uses, topics have ids there.
func ToTopic(topic string) func(kmsg.Request) bool {
	return func(r kmsg.Request) bool {
		produce, ok := r.(*kmsg.ProduceRequest)
		if !ok {
			return false
		}
		for _, t := range produce.Topics {
			if t.Topic == topic {
				return true
			}
		}
		return false
	}
}
