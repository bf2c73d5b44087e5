package kafkasec

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/segmentio/kafka-go/sasl"
)

// Secret is a text that no verb of package fmt, no encoder and no logger shows.
type Secret string

const hidden = "(secret)"

// Format implements fmt.Formatter, for all verbs.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.shown()) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown()) }

// MarshalText implements encoding.TextMarshaler, and with it JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }

func (s Secret) shown() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Mechanism is a sasl.Mechanism that prints as its name.
type Mechanism struct{ sasl.Mechanism }

// Hide wraps a mechanism, whose fields may hold a password, so that it can be
// printed. Nil stays nil.
func Hide(m sasl.Mechanism) sasl.Mechanism {
	if m == nil {
		return nil
	}
	if _, already := m.(Mechanism); already {
		return m
	}
	return Mechanism{m}
}

// Format implements fmt.Formatter, for all verbs.
func (m Mechanism) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Name(m.Mechanism)) }

// LogValue implements slog.LogValuer.
func (m Mechanism) LogValue() slog.Value { return slog.StringValue(Name(m.Mechanism)) }

// MarshalText implements encoding.TextMarshaler, and with it JSON.
func (m Mechanism) MarshalText() ([]byte, error) { return []byte(Name(m.Mechanism)), nil }

// Name is a mechanism's name, "none" for nil.
func Name(m sasl.Mechanism) string {
	if m == nil {
		return "none"
	}
	return m.Name()
}
