package kafkapub

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkasec"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

const secret = "correct horse battery"

var mechanisms = []string{kafkasec.Plain, kafkasec.ScramSHA256, kafkasec.ScramSHA512}

// authority writes a certificate where a configuration can name it.
func authority(t *testing.T, pem []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// secured is a change of a configuration to one with TLS and SASL, whose log
// is kept.
func secured(t *testing.T, ca, mechanism, password string, log *bytes.Buffer) func(*Config) {
	t.Helper()
	encryption, login, err := kafkasec.Config{TLS: true, CAFile: ca, Mechanism: mechanism, User: "relay", Password: kafkasec.Secret(password)}.Open()
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		c.TLS, c.SASL, c.Logger = encryption, login, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

// works publishes through the secured listener at addr.
func works(t *testing.T, addr, topic, ca string) {
	t.Helper()
	for i, mechanism := range mechanisms {
		var log bytes.Buffer
		p := open(t, []string{addr}, secured(t, ca, mechanism, secret, &log))
		insist(t, p, to(topic, events(int64(i+1))))
		if _, err := p.Describe(within(t), topic); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		wrong := open(t, []string{addr}, secured(t, ca, mechanism, "not the password", &log))
		_, err := wrong.Describe(within(t), topic)
		unknown(t, err)
		unknown(t, wrong.Produce(within(t), to(topic, events(100))))
		if shown := log.String() + err.Error(); strings.Contains(shown, secret) || strings.Contains(shown, "not the password") {
			t.Errorf("%s: a password is shown: %s", mechanism, shown)
		}
	}
	// Without the authority there is no connection at all.
	encryption := &tls.Config{}
	p := open(t, []string{addr}, func(c *Config) { c.TLS = encryption })
	_, err := p.Describe(within(t), topic)
	unknown(t, err)
	if !strings.Contains(err.Error(), "certificate") {
		t.Errorf("the error doesn't say why: %v", err)
	}
}

func TestItAuthenticatesByEachMechanismOverTLS(t *testing.T) {
	t.Parallel()
	cert, key := kafkatest.Certificate(t)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	c := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "relay", secret), kfake.Superuser("SCRAM-SHA-256", "relay", secret), kfake.Superuser("SCRAM-SHA-512", "relay", secret))
	works(t, c.ListenAddrs()[0], "orders", authority(t, cert))
}

func TestRealKafkaAuthenticatesByEachMechanismOverTLS(t *testing.T) {
	t.Parallel()
	cert, key := kafkatest.Certificate(t)
	broker := kafkatest.Apache(t, apachekafka.Config{Secure: &apachekafka.Secure{CertPEM: cert, KeyPEM: key, Users: map[string]string{"relay": secret}}})
	topic := kafkatest.Topic(t, broker.Addr(), 1)
	for _, m := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} { // one at a time: a request may name a user once
		altered, err := kafkatest.Admin(t, broker.Addr()).AlterUserSCRAMs(within(t), nil, []kadm.UpsertSCRAM{{User: "relay", Mechanism: m, Iterations: 4096, Password: secret}})
		if err == nil {
			err = altered.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	works(t, broker.SecureAddr(), topic, authority(t, cert))
	if got := stored(t, []string{broker.Addr()}, topic); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("log %v", got)
	}
}
