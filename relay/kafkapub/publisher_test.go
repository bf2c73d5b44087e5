package kafkapub

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/relay"
)

func TestEveryRequestAsksForAllReplicasAndNamesItsTimeout(t *testing.T) {
	t.Parallel()
	c := fake(t)
	seen := listen(c)
	p := open(t, c.ListenAddrs())
	insist(t, p, events(1, 2))
	insist(t, p, events(3))
	w := seen.all()
	if len(w) != 2 || w[0].acks != -1 || w[1].acks != -1 {
		t.Fatalf("requests %+v", w)
	}
	// kafka-go gives the broker half of the client's timeout, 30 s by default,
	// and 500 ms if there is none.
	if ms := w[0].timeout; ms < 14000 || ms > 15000 {
		t.Errorf("broker's timeout %d ms, want 15000", ms)
	}
	if w[0].producerID < 0 || w[0].producerID != w[1].producerID || w[0].sequence != 0 || w[1].sequence != 2 {
		t.Errorf("producer %d from %d, then %d from %d", w[0].producerID, w[0].sequence, w[1].producerID, w[1].sequence)
	}
}

func TestALostAcknowledgementLeavesOneCopy(t *testing.T) {
	t.Parallel()
	// The broker appends, and then answers "timed out" or "too few replicas".
	for _, code := range []*kerr.Error{kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		insist(t, p, events(1, 2))
		seen := listen(c)
		lost := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, Count: 2})
		b := events(3, 4)
		if n := insist(t, p, b); n != 3 || lost.Hits() != 2 {
			t.Fatalf("%v: %d attempts, %d answers lost", code, n, lost.Hits())
		}
		insist(t, p, events(5))
		w := seen.all()
		if !bytes.Equal(w[0].records, w[1].records) || !bytes.Equal(w[0].records, w[2].records) {
			t.Errorf("%v: the same batch went out with different bytes", code)
		}
		if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
			t.Errorf("%v: log %v", code, got)
		}
	}
}

// The attack on sequence numbers: [1 2 3] is appended but the answer is lost;
// the resend is refused because of 1 (its limits changed, say), and [2 3 4]
// goes out instead. Under the old numbers, the broker would take it for the
// resend of [1 2 3], acknowledge it, and 4 would be lost.
func TestOtherRecordsNeverGoOutUnderNumbersThatMayBeUsedUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*kfake.Cluster, *Publisher, *relay.Batch) error{
		"after a refusal": func(c *kfake.Cluster, p *Publisher, b *relay.Batch) error {
			answer(c, 1, kafkaCode(kafka.InvalidRecord), 0)
			return p.Produce(context.Background(), b)
		},
		"after the batch was given up": func(*kfake.Cluster, *Publisher, *relay.Batch) error { return nil },
	} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut})
		b := events(1, 2, 3)
		unknown(t, p.Produce(within(t), b))
		if err := end(c, p, b); err != nil && !certain(err) {
			t.Fatal(err)
		}
		insist(t, p, events(2, 3, 4))
		if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3, 2, 3, 4}) {
			t.Errorf("%s: log %v: want duplicates, and 4", name, got)
		}
	}
}

func TestABrokerThatForgotOrContradictsUsIsSentTheRecordsUnderANewProducer(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{kafka.OutOfOrderSequenceNumber, kafka.DuplicateSequenceNumber, kafka.UnknownProducerId, kafka.InvalidProducerIDMapping} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		insist(t, p, events(1))
		answer(c, 1, kafkaCode(code))
		b := events(2, 3)
		unknown(t, p.Produce(within(t), b))
		seen := listen(c)
		insist(t, p, b)
		insist(t, p, events(4))
		w := seen.all()
		if len(w) != 2 || w[0].sequence != 0 || w[1].sequence != 2 || w[0].producerID != w[1].producerID {
			t.Errorf("%v: requests from %+v", code, w)
		}
		if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3, 4}) {
			t.Errorf("%v: log %v", code, got)
		}
	}
}

func TestANewProducerIsTheLanesOwn(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	other := func(seq int64) *relay.Batch { b := events(seq); b.Partition = 1; return b }
	insist(t, p, events(1))
	insist(t, p, other(1))
	answer(c, 1, kafkaCode(kafka.UnknownProducerId))
	insist(t, p, events(2))
	seen := listen(c)
	insist(t, p, other(2))
	insist(t, p, events(3))
	w := seen.all()
	if w[0].sequence != 1 || w[1].sequence != 1 || w[0].producerID == w[1].producerID {
		t.Errorf("requests from %+v", w)
	}
}

func TestSequenceNumbersNeverRunOutInsideABatch(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	insist(t, p, events(1))
	p.lane("orders", 0).sequence = 1<<31 - 2
	seen := listen(c)
	insist(t, p, events(2, 3))
	if w := seen.all(); len(w) != 1 || w[0].sequence != 0 {
		t.Errorf("requests from %+v", w)
	}
}

func TestRefusedRecordsAreNamedWhereTheBrokerNamesThem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		code kafka.Error
		bad  []int32
		of   int
		want []int
	}{
		{"by index", kafka.InvalidRecord, []int32{3, 1}, 4, []int{1, 3}},
		{"by index, a timestamp", kafka.InvalidTimestamp, []int32{0}, 2, []int{0}},
		{"not named", kafka.MessageSizeTooLarge, nil, 2, nil},
		{"not named, but alone", kafka.MessageSizeTooLarge, nil, 1, []int{0}},
		{"list too large", kafka.RecordListTooLarge, nil, 3, nil},
		{"places that don't exist", kafka.InvalidRecord, []int32{-1, 2}, 2, nil},
	} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		answer(c, 1, kafkaCode(tc.code), tc.bad...)
		b := events([]int64{1, 2, 3, 4}[:tc.of]...)
		err := p.Produce(within(t), b)
		var re *relay.RefusedError
		if !errors.As(err, &re) || !slices.Equal(re.Indexes, tc.want) || (re.Indexes == nil) != (tc.want == nil) || !errors.Is(err, tc.code) {
			t.Errorf("%s: got %v", tc.name, err)
			continue
		}
		if !strings.Contains(err.Error(), "orders/0") {
			t.Errorf("%s: the error doesn't say where: %v", tc.name, err)
		}
		if got := stored(t, c.ListenAddrs(), "orders"); len(got) != 0 {
			t.Errorf("%s: log %v", tc.name, got)
		}
	}
}

func TestABatchBeyondOneRequestIsRefusedWithoutAskingTheBroker(t *testing.T) {
	t.Parallel()
	c := fake(t)
	seen := listen(c)
	p := open(t, c.ListenAddrs(), func(c *Config) { c.MaxBatchBytes = 1000 })
	var re *relay.RefusedError
	if err := p.Produce(within(t), events(1, 2, 3)); !errors.As(err, &re) || re.Indexes != nil {
		t.Errorf("three records: %v", err)
	}
	big := events(1)
	big.Records[0].Payload = make([]byte, 1000)
	if err := p.Produce(within(t), big); !errors.As(err, &re) || !slices.Equal(re.Indexes, []int{0}) {
		t.Errorf("one record: %v", err)
	}
	insist(t, p, events(1))
	if n := len(seen.all()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestAFencedProducerIsToldSoAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{kafka.InvalidProducerEpoch, kafka.InvalidTransactionState, kafka.ProducerFenced} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		answer(c, 1, kafkaCode(code))
		if err := p.Produce(within(t), events(1)); !errors.Is(err, relay.ErrFenced) || !errors.Is(err, code) {
			t.Errorf("%v: got %v", code, err)
		}
	}
}

func TestWithoutTheRightToIdempotenceRecordsGoOutPlainly(t *testing.T) {
	t.Parallel()
	for name, deny := range map[string]func(*kfake.Cluster){
		"no producer id is given": func(c *kfake.Cluster) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.ClusterAuthorizationFailed, Count: -1})
		},
		"the request is not supported": func(c *kfake.Cluster) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.UnsupportedVersion, Count: -1})
		},
		"the request is not known": func(c *kfake.Cluster) {
			c.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				return nil, errors.New("unknown request"), true // the connection ends
			})
			c.ControlKey(int16(kmsg.ApiVersions), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := r.ResponseKind().(*kmsg.ApiVersionsResponse)
				for _, k := range []kmsg.Key{kmsg.Produce, kmsg.Metadata, kmsg.ApiVersions, kmsg.ListOffsets, kmsg.Fetch, kmsg.FindCoordinator} {
					a := kmsg.NewApiVersionsResponseApiKey()
					a.ApiKey, a.MinVersion, a.MaxVersion = int16(k), 0, 8
					if k == kmsg.Produce {
						a.MinVersion = 3
					}
					resp.ApiKeys = append(resp.ApiKeys, a)
				}
				return resp, nil, true
			})
		},
		"a producer id is refused": func(c *kfake.Cluster) { answer(c, 1, kafkaCode(kafka.ClusterAuthorizationFailed)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t)
			deny(c)
			seen := listen(c)
			var log bytes.Buffer
			p := open(t, c.ListenAddrs(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			insist(t, p, events(1))
			insist(t, p, events(2))
			second := events(1)
			second.Partition = 1
			insist(t, p, second)
			for _, w := range seen.all() {
				if w.producerID != -1 || w.sequence != -1 {
					t.Errorf("producer %d, sequence %d", w.producerID, w.sequence)
				}
			}
			if n := strings.Count(log.String(), "refuses idempotent produce"); n != 1 {
				t.Errorf("said %d times:\n%s", n, log.String())
			}
		})
	}
}

func TestLosingIdempotenceIsSaidOnce(t *testing.T) {
	t.Parallel()
	c := fake(t)
	var log bytes.Buffer
	p := open(t, c.ListenAddrs(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	second := func(seq int64) *relay.Batch { b := events(seq); b.Partition = 1; return b }
	insist(t, p, events(1))
	insist(t, p, second(1))
	answer(c, 2, kafkaCode(kafka.ClusterAuthorizationFailed))
	one, two := events(2), second(2)
	unknown(t, p.Produce(within(t), one))
	unknown(t, p.Produce(within(t), two))
	insist(t, p, one)
	insist(t, p, two)
	if n := strings.Count(log.String(), "refuses idempotent produce"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

func TestAPlainClusterRefusalIsTheTopics(t *testing.T) {
	t.Parallel()
	c := fake(t)
	answer(c, 2, kafkaCode(kafka.ClusterAuthorizationFailed))
	p := open(t, c.ListenAddrs())
	b := events(1)
	unknown(t, p.Produce(within(t), b))
	var te *relay.TopicError
	if err := p.Produce(within(t), b); !errors.As(err, &te) {
		t.Errorf("got %v", err)
	}
}

func kafkaCode(e kafka.Error) int16 { return int16(e) }
