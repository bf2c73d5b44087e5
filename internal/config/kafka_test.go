package config_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/kafkasec"
)

func TestKafkasPasswordComesFromAFileAndShowsNowhere(t *testing.T) {
	const password = "correct horse battery"
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCELINE_KAFKA_PASSWORD_FILE", file)
	t.Setenv("FENCELINE_KAFKA_USER", "relay")
	var kafka config.Kafka
	s := config.New("relay run", "test")
	kafka.Register(s)
	if err := s.Parse([]string{"-kafka", "127.0.0.1:9092", "-kafka-tls", "-kafka-sasl", "scram-sha-512"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if c := kafka.Security; c.Password != password || c.User != "relay" || c.Mechanism != kafkasec.ScramSHA512 || !c.TLS {
		t.Errorf("TLS %t, mechanism %q, user %q, the password %t", c.TLS, c.Mechanism, c.User, c.Password == password)
	}
	var help strings.Builder
	s.Help(&help)
	if strings.Contains(help.String(), password) {
		t.Error("the help shows the password")
	}
	kafka = config.Kafka{}
	s = config.New("relay run", "test")
	kafka.Register(s)
	err := s.Parse([]string{"-kafka", "127.0.0.1:9092", "-kafka-sasl", "kerberos"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "scram-sha-512") || strings.Contains(err.Error(), password) {
		t.Errorf("got %v", err)
	}
}
