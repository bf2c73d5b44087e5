package kafkapub

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/relay"
)

func TestATopicIsDescribedAsTheBrokerSees(t *testing.T) {
	t.Parallel()
	c := fake(t)
	limit := "16000000"
	if err := c.CreateTopic("state", 5, map[string]string{"cleanup.policy": "compact", "max.message.bytes": limit}); err != nil {
		t.Fatal(err)
	}
	p := open(t, c.ListenAddrs())
	got, err := p.Describe(within(t), "orders")
	if want := (relay.Topic{Name: "orders", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: 1048588}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	got, err = p.Describe(within(t), "state")
	if want := (relay.Topic{Name: "state", Partitions: 5, CleanupPolicy: "compact", MaxMessageBytes: 16000000}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	// A change shows at once: nothing is remembered.
	if err := c.DeleteTopic("state"); err != nil {
		t.Fatal(err)
	}
	_, err = p.Describe(within(t), "state")
	topicError(t, err, "create it")
	if err := c.CreateTopic("state", 2, nil); err != nil {
		t.Fatal(err)
	}
	if got, err = p.Describe(within(t), "state"); err != nil || got.Partitions != 2 || got.CleanupPolicy != "delete" {
		t.Errorf("created anew: %+v, %v", got, err)
	}
}

// topicError requires a *relay.TopicError whose text has words.
func topicError(t *testing.T, err error, words string) {
	t.Helper()
	var te *relay.TopicError
	if !errors.As(err, &te) || !strings.Contains(err.Error(), words) {
		t.Errorf("got %v, want a topic error about %q", err, words)
	}
}

func TestAnUnusableTopicIsTheTopicsFault(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	b := events(1)
	b.Topic = "nowhere"
	topicError(t, p.Produce(within(t), b), "create it")
	if c.TopicInfo("nowhere") != nil {
		t.Error("the topic was created")
	}
	if err := c.CreateTopic("nowhere", 1, nil); err != nil {
		t.Fatal(err)
	}
	insist(t, p, b) // the same batch, as soon as the topic is there

	beyond := events(1)
	beyond.Partition = 3
	topicError(t, p.Produce(within(t), beyond), "no partition 3")

	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.InvalidTopic, kafka.UnsupportedForMessageFormat, kafka.PolicyViolation} {
		answer(c, 1, kafkaCode(code))
		b := events(1)
		topicError(t, p.Produce(within(t), b), "")
	}
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed})
	_, err := p.Describe(within(t), "orders")
	topicError(t, err, "grant DescribeConfigs")
	_, err = p.Describe(within(t), "")
	topicError(t, err, "empty")
}

func TestATopicThatIsThereIsNotUnknownBecauseOneAnswerSaysSo(t *testing.T) {
	t.Parallel()
	c := fake(t)
	p := open(t, c.ListenAddrs())
	insist(t, p, events(1))
	answer(c, 1, kafkaCode(kafka.UnknownTopicOrPartition))
	b := events(2)
	unknown(t, p.Produce(within(t), b))
	insist(t, p, b)

	// The route to "later" was made before the topic was.
	later := events(1)
	later.Topic = "later"
	topicError(t, p.Produce(within(t), later), "create it")
	if err := c.CreateTopic("later", 1, nil); err != nil {
		t.Fatal(err)
	}
	if n := insist(t, p, later); n > 2 {
		t.Errorf("the new topic took %d attempts", n)
	}
}

func TestAnUnreachableBrokerIsAnOutageNotAnUnknownTopic(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	p := open(t, []string{address})
	b := events(1)
	for range 3 {
		unknown(t, p.Produce(within(t), b))
	}
	_, err = p.Describe(within(t), "orders")
	unknown(t, err)
	if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the error doesn't say why: %v", err)
	}
	// It comes up: the same batch goes out.
	_, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	c := fake(t, kfake.Ports(n))
	insist(t, p, b)
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1}) {
		t.Errorf("log %v", got)
	}
}

func TestARestartedBrokerIsFoundAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := fake(t, kfake.DataDir(dir))
	_, port, _ := net.SplitHostPort(c.ListenAddrs()[0])
	n, _ := strconv.Atoi(port)
	p := open(t, c.ListenAddrs())
	insist(t, p, events(1))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut}) // appended, answer lost
	b := events(2)
	unknown(t, p.Produce(within(t), b))
	c.Close()
	unknown(t, p.Produce(within(t), b))
	c = fake(t, kfake.DataDir(dir), kfake.Ports(n))
	insist(t, p, b)
	insist(t, p, events(3))
	got := stored(t, c.ListenAddrs(), "orders")
	if !slices.Equal(got, []int64{1, 2, 3}) && !slices.Equal(got, []int64{1, 2, 2, 3}) { // the second, where the broker forgot us
		t.Errorf("log %v", got)
	}
}

func TestALeaderThatMovedIsFollowed(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.NumBrokers(3))
	// Leaders must be followed because an answer said so, not because the
	// memory of them ran out.
	p := open(t, c.ListenAddrs(), func(c *Config) { c.MetadataTTL = time.Hour })
	for seq := int64(1); seq < 10; seq++ {
		if err := c.MoveTopicPartition("orders", 0, int32(seq%3)); err != nil {
			t.Fatal(err)
		}
		if n := insist(t, p, events(seq)); n > 3 {
			t.Errorf("%d attempts for a new leader", n)
		}
	}
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("log %v", got)
	}
}

func TestAnUncertainClusterIsAskedAgainWithTheSameBatch(t *testing.T) {
	t.Parallel()
	for _, code := range []kafka.Error{kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.RequestTimedOut, kafka.NetworkException,
		kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotEnoughReplicas, kafka.KafkaStorageError, kafka.ThrottlingQuotaExceeded, kafka.Unknown, kafka.Error(119)} {
		c := fake(t)
		p := open(t, c.ListenAddrs())
		answer(c, 1, kafkaCode(code))
		seen := listen(c)
		b := events(1)
		unknown(t, p.Produce(within(t), b))
		insist(t, p, b)
		if w := seen.all(); len(w) != 1 || w[0].sequence != 0 {
			t.Errorf("%v: %+v", code, w)
		}
	}
	// Before a producer id is known, too.
	c := fake(t)
	p := open(t, c.ListenAddrs())
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorLoadInProgress, Count: 2})
	if n := insist(t, p, events(1)); n != 3 {
		t.Errorf("%d attempts", n)
	}
}

func TestItAuthenticatesAndSaysWhenItMayNot(t *testing.T) {
	t.Parallel()
	c := fake(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "secret"))
	p := open(t, c.ListenAddrs(), func(c *Config) { c.SASL = plain.Mechanism{Username: "relay", Password: "secret"} })
	insist(t, p, events(1))
	if _, err := p.Describe(within(t), "orders"); err != nil {
		t.Error(err)
	}
	p = open(t, c.ListenAddrs(), func(c *Config) { c.SASL = plain.Mechanism{Username: "relay", Password: "wrong"} })
	_, err := p.Describe(within(t), "orders")
	unknown(t, err)
	if !strings.Contains(err.Error(), "SASL") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("got %v", err)
	}
}

func TestItSpeaksTLS(t *testing.T) {
	t.Parallel()
	// The standard library's certificate for tests, which is for 127.0.0.1.
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	c := fake(t, kfake.TLS(&tls.Config{Certificates: s.TLS.Certificates}))
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	p := open(t, c.ListenAddrs(), func(c *Config) { c.TLS = &tls.Config{RootCAs: roots} })
	insist(t, p, events(1))
	p = open(t, c.ListenAddrs(), func(c *Config) { c.TLS = &tls.Config{} })
	_, err := p.Describe(within(t), "orders")
	unknown(t, err)
	if !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error doesn't say why: %v", err)
	}
}
