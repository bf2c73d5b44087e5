package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/kafkasec"
)

// Kafka is the settings of a command's brokers.
type Kafka struct {
	Brokers  []string
	Security kafkasec.Config

	command string // whose settings they are
}

// Register adds them to a set.
func (k *Kafka) Register(s *Set) {
	s.List(&k.Brokers, "kafka", "KAFKA_BROKERS", "", "Kafka brokers to begin with, host:port, separated by commas", Required(), Check(CheckBrokers))
	k.security(s)
}

// RegisterOptional adds them to a set whose command can do without Kafka.
func (k *Kafka) RegisterOptional(s *Set) {
	s.List(&k.Brokers, "kafka", "KAFKA_BROKERS", "", "Kafka brokers to begin with, host:port, separated by commas; without them Kafka is left out", Check(CheckBrokers))
	k.security(s)
}

// flags are the settings of a kafkasec.Config by the flags below.
var flags = kafkasec.Names{
	"TLS": "-kafka-tls", "CAFile": "-kafka-ca-file", "CertFile": "-kafka-cert-file", "KeyFile": "-kafka-key-file", "ServerName": "-kafka-server-name",
	"Mechanism": "-kafka-sasl", "User": "-kafka-user", "Password": "-kafka-password",
}

// Open gives what a Kafka client wants for these settings. Every command opens
// its clients with it, so that none of them forgets to encrypt or to log in. The
// error is a *UsageError, by the names of the flags.
func (k *Kafka) Open() (kafkasec.Client, error) {
	client, err := k.Security.OpenAs(flags)
	if err != nil {
		problems := []error{err}
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			problems = several.Unwrap()
		}
		for i, p := range problems { // the package is nobody's setting
			problems[i] = errors.New(strings.TrimPrefix(p.Error(), "kafkasec: "))
		}
		return client, &UsageError{problemsOf(k.command, problems)}
	}
	return client, nil
}

// ExplainKafka says in one line why a Kafka client could not do its work, and
// which of the flags helps.
func ExplainKafka(err error) (cause, remedy string) { return kafkasec.Explain(err, flags) }

func (k *Kafka) security(s *Set) {
	c := &k.Security
	k.command = s.Name
	s.Bool(&c.TLS, "kafka-tls", "KAFKA_TLS", "encrypt the connections to Kafka, and check the brokers' certificates")
	s.String(&c.CAFile, "kafka-ca-file", "KAFKA_CA_FILE", "", "PEM file with the authorities that have signed them; the system's if empty")
	s.String(&c.CertFile, "kafka-cert-file", "KAFKA_CERT_FILE", "", "PEM file with a client certificate, where brokers want one")
	s.String(&c.KeyFile, "kafka-key-file", "KAFKA_KEY_FILE", "", "PEM file with its key")
	s.String(&c.ServerName, "kafka-server-name", "KAFKA_SERVER_NAME", "", "name to check the brokers' certificates against; each broker's host name if empty")
	s.String(&c.Mechanism, "kafka-sasl", "KAFKA_SASL", "", "how to authenticate to Kafka: plain (with TLS only), scram-sha-256 or scram-sha-512; not at all if empty",
		Check(OneOf(kafkasec.Plain, kafkasec.ScramSHA256, kafkasec.ScramSHA512)))
	s.String(&c.User, "kafka-user", "KAFKA_USER", "", "user to authenticate as")
	s.String((*string)(&c.Password), "kafka-password", "KAFKA_PASSWORD", "", "password to authenticate with", Secret())
}

// CheckBrokers is the rule for a list of brokers.
func CheckBrokers(v string) error {
	for b := range strings.SplitSeq(v, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(b))
		if err != nil || host == "" || port == "" {
			return errors.New("want host:port, or several separated by commas")
		}
	}
	return nil
}

// NoBrokerError is that none of the brokers can be reached: an outage, or a wrong
// address.
type NoBrokerError struct {
	// Brokers are the addresses, Causes why each can't be reached.
	Brokers, Causes []string
}

// Error implements error.
func (e *NoBrokerError) Error() string {
	return fmt.Sprintf("no Kafka broker can be reached at %s: check -kafka, and that a broker is up (%s)", strings.Join(e.Brokers, ","), strings.Join(e.Causes, "; "))
}

// Reach tries whether one of the brokers can be reached, so that a wrong
// address is told at once. The error is a *NoBrokerError, but for the context's.
func (k *Kafka) Reach(ctx context.Context) error {
	var causes []string
	dialer := net.Dialer{Timeout: 5 * time.Second}
	for _, b := range k.Brokers {
		c, err := dialer.DialContext(ctx, "tcp", b)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		causes = append(causes, err.Error())
	}
	return &NoBrokerError{k.Brokers, causes}
}
