package kafkasource

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl/plain"
)

func TestNothingThatIsPrintedShowsThePassword(t *testing.T) {
	t.Parallel()
	const password = "correct horse battery"
	c := Config{Brokers: []string{"127.0.0.1:9092"}, Group: "g", Topics: []string{"t"}, TLS: &tls.Config{}, SASL: plain.Mechanism{Username: "relay", Password: password}}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing was opened
	var out bytes.Buffer
	for _, v := range []any{c, &c, s, struct{ C any }{c}, []any{c, s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("text", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "value", v)
		text, _ := json.Marshal(v)
		out.Write(text)
	}
	if s := out.String(); strings.Contains(s, password) || strings.Contains(s, fmt.Sprintf("%x", password)) {
		t.Errorf("the password is shown:\n%s", s)
	}
	if !strings.Contains(out.String(), "SASL PLAIN") {
		t.Errorf("the mechanism is not shown:\n%s", out.String())
	}
}
