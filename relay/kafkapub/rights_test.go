package kafkapub

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/internal/kafkasec"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestTheBrokerIsAskedWhetherThisLoginMayWrite(t *testing.T) {
	t.Parallel()
	cert, key := kafkatest.Certificate(t)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	topic := func(op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "orders", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	c := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.User("SCRAM-SHA-256", "reader", secret, topic(kmsg.ACLOperationDescribe), topic(kmsg.ACLOperationRead)),
		kfake.User("SCRAM-SHA-256", "writer", secret, topic(kmsg.ACLOperationWrite)),
		kfake.User("SCRAM-SHA-256", "nobody", secret))
	ca := authority(t, cert)
	for user, want := range map[string]bool{"reader": false, "writer": true, "nobody": false} {
		encryption, login, err := kafkasec.Config{TLS: true, CAFile: ca, Mechanism: kafkasec.ScramSHA256, User: user, Password: secret}.Open()
		if err != nil {
			t.Fatal(err)
		}
		p := open(t, append([]string{"127.0.0.1:1"}, c.ListenAddrs()...), func(c *Config) { c.TLS, c.SASL = encryption, login }) // the first one is down
		if may, known, err := p.MayWrite(within(t), "orders"); may != want || !known || err != nil {
			t.Errorf("%s: may write %v, known %v, %v", user, may, known, err)
		}
	}
	p := open(t, c.ListenAddrs(), func(c *Config) {
		c.TLS, c.SASL, c.Logger = &tls.Config{InsecureSkipVerify: true}, plain.Mechanism{Username: "reader", Password: "not the password"}, slog.New(slog.DiscardHandler) //nolint:gosec // it is the password that is wrong
	})
	if _, known, err := p.MayWrite(within(t), "orders"); err == nil || known || strings.Contains(err.Error(), "not the password") {
		t.Errorf("with a wrong password: known %v, %v", known, err)
	}
}

func TestABrokerThatDoesNotTellRightsIsNotTakenForOneThatRefuses(t *testing.T) {
	t.Parallel()
	c := fake(t)
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		m, ok := req.(*kmsg.MetadataRequest)
		if !ok || !m.IncludeTopicAuthorizedOperations {
			return nil, nil, false
		}
		resp, _ := m.ResponseKind().(*kmsg.MetadataResponse)
		told := kmsg.NewMetadataResponseTopic() // its rights are -2147483648
		told.Topic = kmsg.StringPtr("orders")
		resp.Topics = append(resp.Topics, told)
		return resp, nil, true
	})
	if may, known, err := open(t, c.ListenAddrs()).MayWrite(within(t), "orders"); may || known || err != nil {
		t.Errorf("may write %v, known %v, %v", may, known, err)
	}
}

func TestAClusterWithoutAnAuthorizerLetsEverybodyWrite(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	if may, known, err := open(t, []string{addr}).MayWrite(within(t), topic); !may || !known || err != nil {
		t.Errorf("may write %v, known %v, %v", may, known, err)
	}
	if _, known, err := open(t, []string{addr}).MayWrite(within(t), kafkatest.Name(t)); known || err == nil {
		t.Errorf("of a topic that isn't there: known %v, %v", known, err)
	}
}

// A broker whose process is stopped, or whose disk is: the system takes connections
// for it.
func TestABrokerThatSaysNothingKeepsNoOtherFromBeingAsked(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	brokers := []string{silent.Addr().String(), addr}
	patient := func(c *Config) { c.Timeout = 20 * time.Second } // of which each has the half
	t.Run("for an answer", func(t *testing.T) {
		t.Parallel()
		if err := open(t, brokers, patient).Reach(within(t)); err != nil {
			t.Errorf("one of two answers: %v", err)
		}
	})
	t.Run("for rights", func(t *testing.T) {
		t.Parallel()
		if may, known, err := open(t, brokers, patient).MayWrite(within(t), topic); !may || !known || err != nil {
			t.Errorf("may write %v, known %v, %v", may, known, err)
		}
	})
}
