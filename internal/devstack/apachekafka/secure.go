package apachekafka

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceline/fenceline/internal/devstack"
)

// Secure is a listener that encrypts (TLS) and wants to know who comes (SASL, by PLAIN or SCRAM). The plain listener
// stays: administrative clients of tests use it.
type Secure struct {
	// CertPEM and KeyPEM are the broker's certificate and its key, the latter as PKCS #8.
	CertPEM, KeyPEM []byte
	// Users are names and passwords for PLAIN. Those for SCRAM are the cluster's data: create them by an administrative
	// client.
	Users map[string]string
}

// SecureAddr is the address of the listener of Config.Secure, host:port.
func (b *Broker) SecureAddr() string { return "127.0.0.1:" + strconv.Itoa(b.securePort) }

// secure adds the listener to the properties.
func (b *Broker) secure(properties map[string]string) (err error) {
	s := b.cfg.Secure
	if s == nil {
		return nil
	}
	if b.securePort, err = devstack.FreePort(); err != nil {
		return err
	}
	store := filepath.Join(b.dir, "broker.pem")
	if err := os.WriteFile(store, slices.Concat(s.KeyPEM, s.CertPEM), 0o600); err != nil {
		return fmt.Errorf("apachekafka: %w", err)
	}
	var users strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Users)) {
		fmt.Fprintf(&users, " user_%s=%q", name, s.Users[name])
	}
	const listener, modules = "listener.name.secure.", "org.apache.kafka.common.security."
	maps.Copy(properties, map[string]string{
		"listeners":                                 properties["listeners"] + ",SECURE://" + b.SecureAddr(),
		"listener.security.protocol.map":            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
		listener + "ssl.keystore.type":              "PEM",
		listener + "ssl.keystore.location":          store,
		listener + "sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		listener + "plain.sasl.jaas.config":         modules + "plain.PlainLoginModule required" + users.String() + ";",
		listener + "scram-sha-256.sasl.jaas.config": modules + "scram.ScramLoginModule required;",
		listener + "scram-sha-512.sasl.jaas.config": modules + "scram.ScramLoginModule required;",
	})
	return nil
}
