package kafkasource

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/fenceline/fenceline/internal/kafkasec"
)

// A configuration holds a password, and so does what is made of it. Whoever
// prints one, by mistake or while looking for another, must not show it.

// String says what matters of c; of the authentication its mechanism alone.
func (c Config) String() string {
	return fmt.Sprintf("kafkasource: brokers %q, client id %q, TLS %t, SASL %s, group %q, topics %q", c.Brokers, c.ClientID, c.TLS != nil, kafkasec.Name(c.SASL), c.Group, c.Topics)
}

// Format implements fmt.Formatter: all verbs give [Config.String].
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue implements slog.LogValuer.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText implements encoding.TextMarshaler, and with it JSON.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Format implements fmt.Formatter: all verbs give the configuration.
func (s *Source) Format(f fmt.State, verb rune) { s.cfg.Format(f, verb) }

// LogValue implements slog.LogValuer.
func (s *Source) LogValue() slog.Value { return s.cfg.LogValue() }
