package kafkasec

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// The mechanisms that [Config].Mechanism can name.
const (
	Plain       = "plain"
	ScramSHA256 = "scram-sha-256"
	ScramSHA512 = "scram-sha-512"
)

// Config is how connections to brokers are secured. The zero value is plain
// connections without authentication.
type Config struct {
	// TLS encrypts the connections. Each broker's certificate is checked
	// against its host name. Defaults to false.
	TLS bool
	// CAFile is a file with the PEM certificates of the authorities that are
	// trusted, instead of the system's. Defaults to the system's.
	CAFile string
	// CertFile and KeyFile are a client certificate and its key, in PEM, for
	// brokers that ask for one. Defaults to none.
	CertFile, KeyFile string
	// ServerName is the name that the brokers' certificates are checked
	// against. Defaults to each broker's host name.
	ServerName string
	// Mechanism is how to authenticate: "plain", "scram-sha-256" or
	// "scram-sha-512". Defaults to none.
	Mechanism string
	// User and Password are what it authenticates with.
	User     string
	Password Secret
}

// Validate reports everything that is wrong with c, each with the remedy. It
// reads no file.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("kafkasec: "+format, args...)) }
	if !c.TLS && (c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" || c.ServerName != "") {
		bad("certificates or a server name are set, but TLS is off: turn it on")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		bad("a client certificate and its key go together: set both or neither")
	}
	switch strings.ToLower(c.Mechanism) {
	case "":
		if c.User != "" || c.Password != "" {
			bad("a user or password is set, but no mechanism: choose %s, %s or %s", Plain, ScramSHA256, ScramSHA512)
		}
	case Plain, ScramSHA256, ScramSHA512:
		if c.User == "" || c.Password == "" {
			bad("%s needs a user and a password: set both", c.Mechanism)
		}
		if strings.ToLower(c.Mechanism) == Plain && !c.TLS {
			bad("plain would send the password in the clear: turn TLS on, or use %s", ScramSHA512)
		}
	default:
		bad("mechanism %q is not known: use %s, %s or %s", c.Mechanism, Plain, ScramSHA256, ScramSHA512)
	}
	return errors.Join(errs...)
}

// Open validates c, reads its files, and gives what a Kafka client wants; nil
// stands for plain connections, and for no authentication.
func (c Config) Open() (*tls.Config, sasl.Mechanism, error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	t, err := c.tls()
	if err != nil {
		return nil, nil, err
	}
	m, err := c.mechanism()
	if err != nil {
		return nil, nil, fmt.Errorf("kafkasec: %s: %w", c.Mechanism, err)
	}
	return t, Hide(m), nil
}

func (c Config) tls() (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafkasec: authorities: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafkasec: authorities: %s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafkasec: client certificate %s with key %s: %w", c.CertFile, c.KeyFile, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

func (c Config) mechanism() (sasl.Mechanism, error) {
	switch strings.ToLower(c.Mechanism) {
	case Plain:
		return plain.Mechanism{Username: c.User, Password: string(c.Password)}, nil
	case ScramSHA256:
		return scram.Mechanism(scram.SHA256, c.User, string(c.Password))
	case ScramSHA512:
		return scram.Mechanism(scram.SHA512, c.User, string(c.Password))
	}
	return nil, nil
}
