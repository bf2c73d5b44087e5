package kafkasec_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/kafkasec"
	"github.com/segmentio/kafka-go"
)

func TestWhyABrokerCanNotBeUsedIsSaidWithTheSettingThatHelpsAndWithoutInternals(t *testing.T) {
	names := kafkasec.Names{"TLS": "-tls", "Mechanism": "-sasl", "User": "-user", "CertFile": "-cert", "KeyFile": "-key"}
	there := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9092}
	for name, c := range map[string]struct {
		err            error
		cause, setting string
	}{
		"plain port": {tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, "doesn't speak TLS", "-tls"},
		"alert":      {&net.OpError{Op: "remote error", Err: tls.AlertError(42)}, "refuses the TLS connection", "-cert and -key"},
		"login":      {kafka.SASLAuthenticationFailed, "refuses the login", "-user"},
		"way":        {kafka.UnsupportedSASLMechanism, "this way of logging in", "-sasl"},
		"closed":     {io.EOF, "ended the connection", "-tls and -sasl"},
		"reset":      {&net.OpError{Op: "read", Net: "tcp", Source: there, Addr: there, Err: os.ErrClosed}, "ended the connection", "-tls and -sasl"},
		"refused":    {&net.OpError{Op: "dial", Net: "tcp", Addr: there, Err: errors.New("connection refused")}, "dial tcp 127.0.0.1:9092: connection refused", "advertises"},
		"no name":    {&net.DNSError{Name: "nowhere.invalid", Err: "no such host"}, "nowhere.invalid", "advertise"},
		"silence":    {context.DeadlineExceeded, "no answer in time", "-tls"},
		"given up":   {&net.OpError{Op: "read", Net: "tcp", Source: there, Addr: there, Err: os.ErrDeadlineExceeded}, "no answer in time", "-tls"},
		"else":       {errors.New("something\nelse"), "something; else", "-tls"},
	} {
		cause, remedy := kafkasec.Explain(fmt.Errorf("kafka.(*Client).Metadata: %w", c.err), names)
		if !strings.Contains(cause, c.cause) || !strings.Contains(remedy, c.setting) {
			t.Errorf("%s: %s: %s", name, cause, remedy)
		}
		if strings.Contains(cause, "kafka.(") || strings.Contains(cause+remedy, "\n") {
			t.Errorf("%s: internals or several lines: %s: %s", name, cause, remedy)
		}
	}
}
