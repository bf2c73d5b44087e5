package kafkasec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/fenceline/fenceline/internal/kafkasec"
)

const password = "correct horse battery"

// everything prints a value in all the ways in which one ends up in a log.
func everything(t *testing.T, v any) string {
	t.Helper()
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		fmt.Fprintf(&out, verb+"\n", v)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("text", "value", v)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "value", v)
	if text, err := json.Marshal(v); err == nil {
		out.Write(text)
	}
	fmt.Fprintln(&out, fmt.Errorf("wrapped: %v", v))
	return out.String()
}

func TestNoWayOfPrintingShowsAPassword(t *testing.T) {
	t.Parallel()
	for _, mechanism := range []string{kafkasec.Plain, kafkasec.ScramSHA256, kafkasec.ScramSHA512} {
		c := kafkasec.Config{TLS: true, Mechanism: mechanism, User: "relay", Password: password}
		_, m, err := c.Open()
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []any{c, &c, m, struct{ SASL any }{m}, struct{ Security kafkasec.Config }{c}, kafkasec.Hide(plain.Mechanism{Username: "relay", Password: password})} {
			printed := everything(t, v)
			if strings.Contains(printed, password) || strings.Contains(printed, fmt.Sprintf("%x", password)) {
				t.Errorf("%T shows the password:\n%s", v, printed)
			}
		}
		if !strings.EqualFold(m.Name(), mechanism) {
			t.Errorf("%s became %s", mechanism, m.Name())
		}
	}
}

func TestWhatDoesNotFitTogetherIsSaidWithTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config kafkasec.Config
		want   string
	}{
		{kafkasec.Config{CAFile: "ca.pem"}, "CAFile: it is set, but TLS is off"},
		{kafkasec.Config{TLS: true, CertFile: "c.pem"}, "KeyFile: it is missing"},
		{kafkasec.Config{TLS: true, KeyFile: "k.pem"}, "CertFile: it is missing"},
		{kafkasec.Config{User: "relay"}, "Mechanism: it is missing"},
		{kafkasec.Config{Mechanism: "gssapi", User: "u", Password: password}, `"gssapi" is not known`},
		{kafkasec.Config{TLS: true, Mechanism: "plain", User: "u"}, "Password: it is missing: plain needs"},
		{kafkasec.Config{Mechanism: "scram-sha-256", Password: password}, "User: it is missing"},
		{kafkasec.Config{ServerName: "broker"}, "ServerName: it is set, but TLS is off"},
		{kafkasec.Config{Mechanism: "PLAIN", User: "u", Password: password}, "in the clear"},
		{kafkasec.Config{TLS: true, CAFile: "/does/not/exist"}, "no such file"},
		{kafkasec.Config{TLS: true, CertFile: "/does/not/exist", KeyFile: "/nor/this"}, "no such file"},
	} {
		_, _, err := c.config.Open()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "kafkasec: ") || strings.Contains(err.Error(), password) {
			t.Errorf("%+v: got %v, want a word about %q", c.config, err, c.want)
		}
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (kafkasec.Config{TLS: true, CAFile: empty}).Open(); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("got %v", err)
	}
}

func TestAnErrorCallsASettingAsWhoeverSetsItDoes(t *testing.T) {
	t.Parallel()
	names := kafkasec.Names{"TLS": "-tls", "CAFile": "-ca", "CertFile": "-cert", "KeyFile": "-key", "Mechanism": "-sasl", "User": "-user", "Password": "-password"}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config kafkasec.Config
		want   string
	}{
		{kafkasec.Config{CAFile: "ca.pem"}, "-ca: it is set, but TLS is off: turn it on with -tls"},
		{kafkasec.Config{TLS: true, CertFile: "c.pem"}, "-key: it is missing, and -cert is set"},
		{kafkasec.Config{User: "relay"}, "-sasl: it is missing"},
		{kafkasec.Config{Mechanism: "plain", User: "u", Password: password}, "with -tls"},
		{kafkasec.Config{Mechanism: "scram-sha-256"}, "-password: it is missing"},
		{kafkasec.Config{TLS: true, CAFile: "/does/not/exist"}, "-ca: open /does/not/exist"},
		{kafkasec.Config{TLS: true, CAFile: empty}, "-ca: " + empty + " holds no certificate"},
		{kafkasec.Config{TLS: true, CertFile: empty, KeyFile: empty}, "-cert " + empty + " with -key " + empty},
		{kafkasec.Config{ServerName: "broker"}, "ServerName: it is set"}, // not among the names
	} {
		if _, err := c.config.OpenAs(names); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want a word about %q", c.config, err, c.want)
		}
	}
}

func TestNothingSetMeansPlainConnections(t *testing.T) {
	t.Parallel()
	tls, sasl, err := kafkasec.Config{}.Open()
	if tls != nil || sasl != nil || err != nil {
		t.Errorf("got %v, %v, %v", tls, sasl, err)
	}
}
