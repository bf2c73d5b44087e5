package kafkapub

import (
	"context"
	"slices"
	"testing"

	"github.com/fenceline/fenceline/internal/kafkatest"
)

// What is in this file runs against kfake and against Apache Kafka.

func TestWhateverIsLostOnTheWayLeavesOneCopyInOrder(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	p := open(t, []string{proxy.Addr()})
	for i, do := range []kafkatest.Action{kafkatest.LoseAnswer, kafkatest.LoseRequest, kafkatest.LoseAnswer} {
		first := int64(10*i + 1)
		insist(t, p, to(topic, events(first)))
		fault := proxy.Inject(&kafkatest.Fault{Do: do, Count: 2})
		if n := insist(t, p, to(topic, events(first+1, first+2))); n != 3 || fault.Hits() != 2 {
			t.Errorf("%v: %d attempts, %d lost", do, n, fault.Hits())
		}
		proxy.Cut()
		insist(t, p, to(topic, events(first+3)))
	}
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24}) {
		t.Errorf("log %v", got)
	}
}

func TestARequestThatArrivesLateIsRecognised(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	way := newSlowWay(t, addr)
	p := open(t, []string{way.outer.Addr()})
	insist(t, p, to(topic, events(1)))
	b := to(topic, events(2, 3))
	land := way.holdBack(t, func(ctx context.Context) error { return p.Produce(ctx, b) })
	insist(t, p, b)
	insist(t, p, to(topic, events(4)))
	land()
	insist(t, p, to(topic, events(5)))
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("log %v", got)
	}
}

// A batch is given up while its request is still on the way, its records go out
// again cut differently, and then the old request lands. The broker can't know
// it for a copy, but all it can add is copies: see the package's comment.
func TestARequestThatArrivesAfterItsRecordsWereCutAnewAddsOnlySecondCopies(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	for _, at := range []int{1, 2} { // when it lands: before or after 3 is in the log
		topic := kafkatest.Topic(t, addr, 1)
		way := newSlowWay(t, addr)
		p := open(t, []string{way.outer.Addr()})
		insist(t, p, to(topic, events(1)))
		land := way.holdBack(t, func(ctx context.Context) error { return p.Produce(ctx, to(topic, events(2, 3))) })
		for i, seq := range []int64{2, 3, 4, 5} {
			if i == at {
				land()
			}
			insist(t, p, to(topic, events(seq)))
		}
		got := stored(t, []string{addr}, topic)
		var first []int64
		for _, seq := range got {
			if !slices.Contains(first, seq) {
				first = append(first, seq)
			}
		}
		if !slices.Equal(first, []int64{1, 2, 3, 4, 5}) || len(got) != 7 {
			t.Errorf("log %v", got)
		}
	}
}

// slowWay is a network that can keep a request for as long as the test likes:
// the outer proxy holds it, and the inner one sees when the broker has done it.
type slowWay struct{ outer, inner *kafkatest.Proxy }

func newSlowWay(t *testing.T, addr string) slowWay {
	inner := kafkatest.NewProxy(t, addr)
	return slowWay{kafkatest.NewProxy(t, inner.Addr()), inner}
}

// holdBack makes an attempt and gives it up once its request is under way. The
// function that it returns lets the request go on, and waits until the broker
// has answered it.
func (w slowWay) holdBack(t *testing.T, produce func(context.Context) error) (land func()) {
	t.Helper()
	held := w.outer.Inject(&kafkatest.Fault{Do: kafkatest.HoldRequest})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- produce(ctx) }()
	held.Wait(t, 1)
	cancel()
	unknown(t, <-result)
	return func() {
		t.Helper()
		seen := w.inner.Inject(&kafkatest.Fault{Do: kafkatest.LoseAnswer})
		held.Release()
		seen.WaitAnswered(t, 1)
	}
}
