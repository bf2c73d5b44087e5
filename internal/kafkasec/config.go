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

// Names says what the fields of a [Config] are called where somebody sets them,
// such as "-kafka-tls" for "TLS", so that an error names what is to be changed. A
// field that isn't in it, and all of a nil Names, goes by its own name.
type Names map[string]string

func (n Names) of(field string) string {
	if name := n[field]; name != "" {
		return name
	}
	return field
}

// Validate reports everything that is wrong with c, each with the setting that
// it is about and the remedy. It reads no file.
func (c Config) Validate() error { return c.validate(nil) }

func (c Config) validate(names Names) error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("kafkasec: %s: "+format, append([]any{names.of(field)}, args...)...))
	}
	if !c.TLS {
		for _, f := range []struct{ field, value string }{{"CAFile", c.CAFile}, {"CertFile", c.CertFile}, {"KeyFile", c.KeyFile}, {"ServerName", c.ServerName}} {
			if f.value != "" {
				bad(f.field, "it is set, but TLS is off: turn it on with %s", names.of("TLS"))
			}
		}
	}
	switch {
	case c.CertFile != "" && c.KeyFile == "":
		bad("KeyFile", "it is missing, and %s is set: set both or neither", names.of("CertFile"))
	case c.CertFile == "" && c.KeyFile != "":
		bad("CertFile", "it is missing, and %s is set: set both or neither", names.of("KeyFile"))
	}
	switch strings.ToLower(c.Mechanism) {
	case "":
		if c.User != "" || c.Password != "" {
			bad("Mechanism", "it is missing, and a user or password is set: choose %s, %s or %s", Plain, ScramSHA256, ScramSHA512)
		}
	case Plain, ScramSHA256, ScramSHA512:
		for _, f := range []struct {
			field string
			empty bool
		}{{"User", c.User == ""}, {"Password", c.Password == ""}} {
			if f.empty {
				bad(f.field, "it is missing: %s needs a user and a password", c.Mechanism)
			}
		}
		if strings.ToLower(c.Mechanism) == Plain && !c.TLS {
			bad("Mechanism", "%s would send the password in the clear: turn TLS on with %s, or use %s", Plain, names.of("TLS"), ScramSHA512)
		}
	default:
		bad("Mechanism", "%q is not known: use %s, %s or %s", c.Mechanism, Plain, ScramSHA256, ScramSHA512)
	}
	return errors.Join(errs...)
}

// Client is what a Kafka client wants.
type Client struct {
	// TLS is nil for plain connections.
	TLS *tls.Config
	// SASL is nil for no authentication.
	SASL sasl.Mechanism
}

// Open validates c, reads its files, and gives what a Kafka client wants; nil
// stands for plain connections, and for no authentication.
func (c Config) Open() (*tls.Config, sasl.Mechanism, error) {
	client, err := c.OpenAs(nil)
	return client.TLS, client.SASL, err
}

// OpenAs is Open with errors that call the settings by their names.
func (c Config) OpenAs(names Names) (Client, error) {
	if err := c.validate(names); err != nil {
		return Client{}, err
	}
	t, err := c.tls(names)
	if err != nil {
		return Client{}, err
	}
	m, err := c.mechanism()
	if err != nil {
		return Client{}, fmt.Errorf("kafkasec: %s: %w", names.of("Password"), err)
	}
	return Client{t, Hide(m)}, nil
}

func (c Config) tls(names Names) (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafkasec: %s: %w: it must name a readable file", names.of("CAFile"), err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafkasec: %s: %s holds no certificate in PEM", names.of("CAFile"), c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafkasec: %s %s with %s %s: %w", names.of("CertFile"), c.CertFile, names.of("KeyFile"), c.KeyFile, err)
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
