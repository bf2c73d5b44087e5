package kafkasource

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/segmentio/kafka-go/sasl"
)

// Config is where to read from and as whom.
type Config struct {
	// Brokers are the addresses (host:port) to find the cluster by. Required.
	Brokers []string
	// Group is the name of the consumer group. Its members share the
	// partitions out among them. Required.
	Group string
	// Topics are the topics to read. They must exist. Required.
	Topics []string
	// ClientID is the name that the brokers log. Defaults to "fenceline".
	ClientID string
	// TLS turns encryption on. Defaults to none.
	TLS *tls.Config
	// SASL is how to authenticate. Defaults to none.
	SASL sasl.Mechanism

	// SessionTimeout is how long the group waits for a sign of life before it
	// gives this member's partitions away. Defaults to 30 s.
	SessionTimeout time.Duration
	// HeartbeatInterval is the time between signs of life, and so about how
	// long it takes to notice a rebalance. Defaults to a tenth of SessionTimeout.
	HeartbeatInterval time.Duration
	// RebalanceTimeout is how long the group waits for this member to let go
	// of its partitions. Give it more than the longest batch takes. Defaults
	// to 60 s.
	RebalanceTimeout time.Duration
	// WatchInterval is how often the number of partitions and their
	// assignment are looked at. Defaults to 5 s.
	WatchInterval time.Duration

	// MaxWait is how long a broker holds a fetch open when there is nothing to
	// read. New records end the wait at once. Defaults to 500 ms.
	MaxWait time.Duration
	// RequestTimeout bounds every other wait for a broker. Defaults to 10 s.
	RequestTimeout time.Duration
	// MaxBatchBytes is the size, decompressed where it is compressed, up to which a
	// record batch is read. Defaults to 64 MiB.
	MaxBatchBytes int

	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// minBatchBytes leaves room for one record of the largest size that the
// outbox lets pass.
const minBatchBytes = 1 << 20

// check fills the defaults in and reports everything that is wrong at once.
func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kafkasource: "+format, args...))
	}
	if len(c.Brokers) == 0 {
		bad("no brokers: set Config.Brokers to at least one host:port")
	}
	for _, b := range c.Brokers {
		if host, port, ok := strings.Cut(b, ":"); !ok || host == "" && port == "" || strings.TrimSpace(b) != b {
			bad("broker %q is not host:port", b)
		}
	}
	if c.Group == "" {
		bad("no consumer group: set Config.Group")
	} else if !utf8.ValidString(c.Group) || strings.ContainsRune(c.Group, 0) || len(c.Group) > 32767 {
		// The protocol would carry it; the tools with which groups are looked at and
		// reset would not.
		bad("Config.Group is %.40q, want UTF-8 without NUL, at most 32,767 bytes", c.Group)
	}
	if len(c.Topics) == 0 {
		bad("no topics: set Config.Topics to at least one")
	}
	seen := map[string]bool{}
	for _, t := range c.Topics {
		if t == "" {
			bad("an empty topic name in Config.Topics")
		} else if seen[t] {
			bad("topic %q is twice in Config.Topics", t)
		}
		seen[t] = true
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"SessionTimeout", &c.SessionTimeout, 30 * time.Second},
		{"HeartbeatInterval", &c.HeartbeatInterval, c.SessionTimeout / 10},
		{"RebalanceTimeout", &c.RebalanceTimeout, time.Minute},
		{"WatchInterval", &c.WatchInterval, 5 * time.Second},
		{"MaxWait", &c.MaxWait, 500 * time.Millisecond},
		{"RequestTimeout", &c.RequestTimeout, 10 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value == 0 { // HeartbeatInterval follows a SessionTimeout that was a default itself
			*d.value = c.SessionTimeout / 10
		}
		if *d.value < time.Millisecond {
			bad("Config.%s is %v, want at least 1ms", d.name, *d.value)
		}
	}
	if c.HeartbeatInterval >= c.SessionTimeout {
		bad("Config.HeartbeatInterval (%v) must be less than SessionTimeout (%v), a third of it at most to survive a lost one", c.HeartbeatInterval, c.SessionTimeout)
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 64 << 20
	}
	if c.MaxBatchBytes < minBatchBytes {
		bad("Config.MaxBatchBytes is %d, want at least %d: one record may be nearly that large", c.MaxBatchBytes, minBatchBytes)
	}
	if c.ClientID == "" {
		c.ClientID = "fenceline"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
