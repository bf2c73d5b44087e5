package kafkasec

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"

	"github.com/segmentio/kafka-go"
)

// Explain says in one line why a broker could not be used, and which setting, by
// its name in names, helps. The cause names no function of a library. The text
// holds neither a user's name nor a password.
func Explain(err error, names Names) (cause, remedy string) {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		op        *net.OpError
		dns       *net.DNSError
	)
	encryption := fmt.Sprintf("is this the port for TLS, and is %s set as that port wants it? A broker has a port of its own for each of TLS and SASL", names.of("TLS"))
	login := fmt.Sprintf("check %s, %s and %s", names.of("User"), names.of("Password"), names.of("Mechanism"))
	switch {
	case errors.Is(err, ErrNotKafka):
		return ErrNotKafka.Error(), fmt.Sprintf("check the port, and whether it wants %s", names.of("TLS"))
	case errors.As(err, &authority):
		return "the broker's certificate is signed by an authority that is not trusted", fmt.Sprintf("name the file with the authority that has signed it with %s", names.of("CAFile"))
	case errors.As(err, &host):
		return "the broker's certificate is not for its address: " + host.Error(), fmt.Sprintf("reach the broker by a name in its certificate, or set %s to one of them", names.of("ServerName"))
	case errors.As(err, &invalid):
		return "the broker's certificate is refused: " + invalid.Error(), fmt.Sprintf("renew it, or name the authority that has signed it with %s; check this machine's clock", names.of("CAFile"))
	case errors.As(err, &record):
		return "the broker doesn't speak TLS on this port", encryption
	case errors.As(err, &alert), errors.As(err, &op) && op.Op == "remote error":
		// The broker has ended the handshake.
		return "the broker refuses the TLS connection: " + Plainly(err), fmt.Sprintf("if it wants a client certificate, name one that it trusts with %s and %s", names.of("CertFile"), names.of("KeyFile"))
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		return "the broker refuses the login", login
	case errors.Is(err, kafka.UnsupportedSASLMechanism), errors.Is(err, kafka.IllegalSASLState):
		return "the broker doesn't take this way of logging in on this port", fmt.Sprintf("set %s to one that its listener has, and check the port", names.of("Mechanism"))
	case strings.Contains(err.Error(), "SASL auth"):
		return "the login failed: " + Plainly(err), login
	case errors.As(err, &dns):
		return dns.Error(), "check the brokers' host names, those that the brokers advertise included"
	case errors.As(err, &op) && op.Op == "dial":
		return Plainly(op), "see that the broker is up, and check its address, and the one that it advertises"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		// Before the next: a read that was given up is one that failed, too.
		return "no answer in time", encryption + ". Check also what stands between, such as a firewall"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op) && op.Op == "read":
		return "the broker ended the connection: do TLS and SASL settings match this port?", fmt.Sprintf("a broker has a port of its own for each of TLS and SASL: check the port, %s and %s", names.of("TLS"), names.of("Mechanism"))
	}
	return Plainly(err), fmt.Sprintf("see that the brokers are up, and check their addresses, %s and %s", names.of("TLS"), names.of("Mechanism"))
}

// internals are the names of functions with which a Kafka client begins its
// errors, and the port of this side of a connection, which differs each time.
var internals = regexp.MustCompile(`kafka\.\(\*?\w+\)\.\w+: |127\.0\.0\.1:\d+->|\[::1\]:\d+->`)

// Plainly is the text of an error without what only the author of a Kafka client
// can use.
func Plainly(err error) string {
	return strings.ReplaceAll(internals.ReplaceAllString(err.Error(), ""), "\n", "; ")
}
