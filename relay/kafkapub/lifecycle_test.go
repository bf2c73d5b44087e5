package kafkapub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTwoCallsForOnePartitionAtOnceAreRefused(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	arrived, resume := make(chan struct{}), make(chan struct{})
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.DropControl()
		close(arrived)
		c.SleepControl(func() { <-resume })
		return nil, nil, false
	})
	first := make(chan error, 1)
	go func() { first <- p.Produce(within(t), events(1)) }()
	<-arrived
	err := p.Produce(within(t), events(2))
	if err == nil || !strings.Contains(err.Error(), "one after the other") {
		t.Errorf("second call: %v", err)
	}
	close(resume)
	if err := <-first; err != nil {
		t.Errorf("first call: %v", err)
	}
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1}) {
		t.Errorf("log %v", got)
	}
}

func TestACancelledCallHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	insist(t, p, events(1))
	arrived, resume := make(chan struct{}), make(chan struct{})
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.DropControl()
		close(arrived)
		c.SleepControl(func() { <-resume })
		return nil, nil, false // it is appended after the caller has gone
	})
	ctx, cancel := context.WithCancel(within(t))
	b := events(2)
	result := make(chan error, 1)
	go func() { result <- p.Produce(ctx, b) }()
	<-arrived
	cancel()
	err := <-result
	unknown(t, err)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(resume)
	insist(t, p, b)
	insist(t, p, events(3))
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("log %v", got)
	}
}

func TestTheBrokersThrottleIsHonoured(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	const throttle = 2 * time.Second // in which a busy machine comes to the next batch
	c.ControlKey(produceKey, func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp, _ := reply(r)
		resp.ThrottleMillis = int32(throttle.Milliseconds())
		return resp, nil, true
	})
	start := time.Now()
	insist(t, p, events(1))
	ctx, cancel := context.WithTimeout(within(t), 20*time.Millisecond)
	defer cancel()
	seen := listen(c)
	b := events(2)
	unknown(t, p.Produce(ctx, b))
	if len(seen.all()) != 0 {
		t.Error("sent although throttled")
	}
	insist(t, p, b)
	if d := time.Since(start); d < throttle {
		t.Errorf("sent again after %v", d)
	}
}

func TestCloseInterruptsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	arrived, resume := make(chan struct{}), make(chan struct{})
	defer close(resume)
	c.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		c.DropControl()
		close(arrived)
		c.SleepControl(func() { <-resume })
		return nil, nil, false
	})
	result := make(chan error, 1)
	go func() { result <- p.Produce(within(t), events(1)) }()
	<-arrived
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	err := <-result
	unknown(t, err)
	if !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := p.Produce(within(t), events(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := p.Describe(within(t), "orders"); !errors.Is(err, ErrClosed) {
		t.Errorf("Describe after Close: %v", err)
	}
	if n := len(p.dialer.open); n != 0 {
		t.Errorf("%d connections are open after Close", n)
	}
	_ = p.Close()
}
