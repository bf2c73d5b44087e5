package kafkasource

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkasec"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestItReadsByEachMechanismOverTLS(t *testing.T) {
	const password = "correct horse battery"
	cert, key := kafkatest.Certificate(t)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := kafkatest.Kfake(t, kfake.SeedTopics(1, "orders"), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "reader", password), kfake.Superuser("SCRAM-SHA-256", "reader", password), kfake.Superuser("SCRAM-SHA-512", "reader", password))
	addr := cluster.ListenAddrs()[0]
	secured := func(mechanism, password string) Config {
		encryption, login, err := kafkasec.Config{TLS: true, CAFile: ca, Mechanism: mechanism, User: "reader", Password: kafkasec.Secret(password)}.Open()
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t, addr, "orders")
		cfg.TLS, cfg.SASL = encryption, login
		return cfg
	}
	roots := secured(kafkasec.Plain, password).TLS
	produce(t, addr, []kgo.Opt{kgo.DialTLSConfig(roots), kgo.SASL(scram.Auth{User: "reader", Pass: password}.AsSha256Mechanism())}, records("orders", 0, "1", "2")...)
	for _, mechanism := range []string{kafkasec.Plain, kafkasec.ScramSHA256, kafkasec.ScramSHA512} {
		s := open(t, secured(mechanism, password))
		if got := read(t, next(t, s), consumer.Partition{Topic: "orders", ID: 0}, 0); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%s: read %q", mechanism, got)
		}
		_, err := open(t, secured(mechanism, "not the password")).Next(within(t))
		if err == nil || strings.Contains(err.Error(), "not the password") {
			t.Errorf("%s with a wrong password: %v", mechanism, err)
		}
	}
}
