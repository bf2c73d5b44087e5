package kafkapub

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// gathers has the first of n batches wait until the others have come, as they do when
// they are about to run.
func (c *crowd) gathers(n int) {
	j := c.lane(0).joiner
	j.gather = func() {
		c.until(func() bool {
			j.mu.Lock()
			defer j.mu.Unlock()
			for _, d := range j.desks {
				if d.gathering != nil && len(d.gathering.batches) == n {
					return true
				}
			}
			return false
		})
	}
}

func TestSmallBatchesThatComeAtTheSameMomentGoTogether(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.held = maxSending // none is kept back
	const together = 5
	c.gathers(together)
	for round := range int64(3) {
		var done sync.WaitGroup
		for i := range together {
			c.lane(i).slow = false // on a busy machine the answer before may have been
			done.Go(func() { insist(t, c.p, wide(i, round+1)) })
		}
		done.Wait()
	}
	sent := c.requests()
	if len(sent) != 3 || len(sent[0]) != together {
		t.Errorf("requests for the partitions %v, want 3 of %d", sent, together)
	}
	c.logs(together, 1, 2, 3)
	for _, d := range c.lane(0).joiner.desks {
		if d.sending != 0 || d.gathering != nil {
			t.Errorf("%d requests are still counted", d.sending)
		}
	}
}

// A request with slow replicas must keep nobody else waiting, and what is large gains
// nothing.
func TestWhatIsSlowOrLargeGoesByItself(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.held = maxSending // none is kept back
	const slow, large, first, second = 0, 1, 2, 3
	c.gathers(2)
	c.lane(slow).slow = true // as after an answer that took long
	big := wide(large, 1)
	big.Records[0].Payload = make([]byte, maxGathered)
	var done sync.WaitGroup
	done.Go(func() { insist(t, c.p, wide(first, 1)) })
	j := c.lane(0).joiner
	c.until(func() bool { // it gathers
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, d := range j.desks {
			return d.gathering != nil
		}
		return false
	})
	insist(t, c.p, wide(slow, 1))
	insist(t, c.p, big)
	if sent := c.requests(); !slices.EqualFunc(sent, [][]int{{slow}, {large}}, slices.Equal) {
		t.Errorf("requests for the partitions %v, want the slow and the large one by themselves", sent)
	}
	done.Go(func() { insist(t, c.p, wide(second, 1)) })
	done.Wait()
	if sent := c.requests(); len(sent) != 3 || len(sent[2]) != 2 {
		t.Errorf("requests for the partitions %v, want the others together", sent)
	}
}

// A partition whose replicas are slow keeps those waiting that went with it, once.
func TestALaneWhoseAnswerTookLongIsSlowUntilOneDoesNot(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.held = maxSending - 1 // one is kept back
	sent := make(chan error, 1)
	go func() { sent <- c.p.Produce(within(t), wide(0, 1)) }()
	c.until(func() bool { return len(c.requests()) == 1 })
	time.Sleep(2 * prompt) // at least: what is slow is slow on a busy machine too
	close(c.release)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !c.lane(0).slow {
		t.Error("its answer took long, and it would go with others")
	}
	seq := int64(1)
	c.until(func() bool { // a busy machine may be slow for a while
		seq++
		insist(t, c.p, wide(0, seq))
		return !c.lane(0).slow
	})
}

// Whoever has come first may give up; the others are sent all the same.
func TestAGatheredRequestOutlivesWhoCameFirst(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.gathers(2)
	ctx, cancel := context.WithCancel(t.Context())
	left, other := make(chan error, 1), make(chan error, 1)
	b := wide(0, 1)
	go func() { left <- c.p.Produce(ctx, b) }()
	j := c.lane(0).joiner
	c.until(func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, d := range j.desks {
			return d.gathering != nil
		}
		return false
	})
	go func() { other <- c.p.Produce(within(t), wide(1, 1)) }()
	c.until(func() bool { return len(c.requests()) == 1 }) // and is kept back
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || certain(err) {
		t.Errorf("who gave up: %v", err)
	}
	close(c.release)
	if err := <-other; err != nil {
		t.Errorf("who didn't: %v", err)
	}
	c.gathers(1)
	insist(t, c.p, b) // the same once more
	c.logs(2, 1)
}
