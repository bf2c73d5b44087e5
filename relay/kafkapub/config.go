package kafkapub

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// Config configures a [Publisher].
type Config struct {
	// Brokers are the addresses, host:port, of some of the cluster's brokers;
	// the others are found through them. At least one is required.
	Brokers []string

	// ClientID is the name under which the broker's logs, metrics and quotas
	// know this client.
	//
	// Defaults to "fenceline-relay".
	ClientID string

	// Timeout bounds one attempt, its connection, its confirmation of an
	// unknown topic and the time that the broker asked to be left alone
	// included. The broker is given half of it to collect the acknowledgements
	// of the in-sync replicas. At least 1 s.
	//
	// Defaults to 30 s.
	Timeout time.Duration

	// MetadataTTL is the longest time for which the leaders of a topic's
	// partitions are taken from memory while nothing contradicts them.
	//
	// Defaults to 10 s.
	MetadataTTL time.Duration

	// MaxBatchBytes is the largest batch, in bytes as encoded, that is sent, by
	// itself or with others in one request, which are no larger together. A
	// larger one is refused without asking the broker. It is no tuning knob:
	// a broker doesn't answer a request beyond its socket.request.max.bytes (by
	// default 100 MiB) but ends the connection, which looks like an outage and
	// would be retried for ever.
	//
	// Defaults to 64 MiB.
	MaxBatchBytes int

	// Compression is how batches are compressed: "none", "gzip", "snappy",
	// "lz4" or "zstd". A batch that doesn't become smaller goes out as it is.
	// The topic's max.message.bytes is compared with what is sent, so a limit
	// that was passed at append is never exceeded by it. On small or already
	// compressed events it costs time and gains nothing. Brokers that refuse
	// it get plain batches, with one warning.
	//
	// Defaults to "none".
	Compression string

	// TLS, if not nil, encrypts the connections. It is copied; where ServerName
	// is empty, each broker's host name is used.
	//
	// Defaults to plain connections.
	TLS *tls.Config

	// SASL, if not nil, authenticates the connections.
	//
	// Defaults to no authentication.
	SASL sasl.Mechanism

	// Logger receives what can't be said in an error.
	//
	// Defaults to slog.Default().
	Logger *slog.Logger
}

const minTimeout = time.Second

// withDefaults gives c with its defaults filled in.
func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "fenceline-relay"
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.MetadataTTL == 0 {
		c.MetadataTTL = 10 * time.Second
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 64 << 20
	}
	if c.Compression == "" {
		c.Compression = CompressionNone
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with c, each with the remedy.
// [New] calls it.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("kafkapub: "+format, args...)) }
	if len(c.Brokers) == 0 {
		bad("no brokers: name at least one as host:port")
	}
	for _, b := range c.Brokers {
		if reason := badAddress(b); reason != "" {
			bad("broker address %q: %s: write host:port, as in 127.0.0.1:9092", b, reason)
		}
	}
	if c.Timeout != 0 && c.Timeout < minTimeout {
		bad("timeout %v is below %v: a broker needs time to collect acknowledgements", c.Timeout, minTimeout)
	}
	if c.MetadataTTL < 0 {
		bad("metadata TTL %v is negative: leave it out for the default", c.MetadataTTL)
	}
	if c.MaxBatchBytes < 0 {
		bad("max batch bytes %d is negative: leave it out for the default", c.MaxBatchBytes)
	}
	if _, known := codecs[c.Compression]; c.Compression != "" && !known {
		bad("compression %q is not known: use none, gzip, snappy, lz4 or zstd", c.Compression)
	}
	return errors.Join(errs...)
}

// badAddress is strict where kafka-go is lenient: it would read an address
// without a port as port 9092, and a comma as a list.
func badAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		var ae *net.AddrError
		if errors.As(err, &ae) {
			return ae.Err
		}
		return err.Error()
	}
	if host == "" {
		return "the host is missing"
	}
	for _, r := range host {
		if r == ',' || r == '/' || r == '@' || r <= ' ' {
			return fmt.Sprintf("%q does not belong in a host name", r)
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Sprintf("port %q is not a number from 1 to 65535", port)
	}
	return ""
}
