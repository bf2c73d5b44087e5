package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

// onKafka are the commands that ask Kafka, each with what it needs besides.
var onKafka = map[string]string{
	"run":          "",
	"doctor":       "",
	"topic accept": "-partitions 1 -drained quakes",
	"republish":    "-key ci",
	"verify":       "",
}

// A command with -kafka has all the flags that say how to connect, and the list of
// such commands above is complete, so that the tests below miss none.
func TestEachCommandThatAsksKafkaCanEncryptAndLogIn(t *testing.T) {
	flags := []string{"-kafka-tls", "-kafka-ca-file", "-kafka-cert-file", "-kafka-key-file", "-kafka-server-name", "-kafka-sasl", "-kafka-user", "-kafka-password"}
	var found []string
	for _, c := range commands() {
		var help bytes.Buffer
		_ = c.Run(context.Background(), []string{"-help"}, &help, &help)
		words := strings.Fields(help.String())
		if !slices.Contains(words, "-kafka") {
			continue
		}
		found = append(found, c.Name)
		for _, f := range flags {
			if !slices.Contains(words, f) {
				t.Errorf("relay %s has no %s", c.Name, f)
			}
		}
	}
	var listed []string
	for name := range onKafka {
		listed = append(listed, name)
	}
	slices.Sort(found)
	slices.Sort(listed)
	if !slices.Equal(found, listed) {
		t.Errorf("%q have -kafka, and this test knows of %q", found, listed)
	}
}

// What is wrong is told before anything is tried, by the name of the flag.
func TestAKafkaSettingThatDoesNotFitIsCalledByItsFlag(t *testing.T) {
	for name, more := range onKafka {
		for args, text := range map[string]string{
			"-kafka-ca-file ca.pem":                                     "-kafka-ca-file: it is set, but TLS is off: turn it on with -kafka-tls",
			"-kafka-tls -kafka-ca-file /does/not/exist":                 "-kafka-ca-file: open /does/not/exist",
			"-kafka-tls -kafka-cert-file c.pem":                         "-kafka-key-file: it is missing, and -kafka-cert-file is set",
			"-kafka-user relay":                                         "-kafka-sasl: it is missing",
			"-kafka-sasl scram-sha-256 -kafka-user relay":               "-kafka-password: it is missing",
			"-kafka-sasl plain -kafka-user u -kafka-password " + secret: "-kafka-sasl: plain would send the password in the clear: turn TLS on with -kafka-tls",
		} {
			line := name + " " + args + " " + more
			want(t, cmdtest.Run(t, settings, "relay", strings.Fields(line)...), 2, text)
		}
	}
}

func TestEachCommandReachesABrokerThatWantsTLSAndALogin(t *testing.T) {
	cert, key := kafkatest.Certificate(t)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := kafkatest.Kfake(t, kfake.SeedTopics(1, "quakes"), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", secret))
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + cluster.ListenAddrs()[0], "FENCELINE_HTTP=off"}
	secure := append(slices.Clone(env), "FENCELINE_KAFKA_TLS=true", "FENCELINE_KAFKA_CA_FILE="+ca, "FENCELINE_KAFKA_SASL=scram-sha-512", "FENCELINE_KAFKA_USER=relay", "FENCELINE_KAFKA_PASSWORD="+secret)
	call := func(env cmdtest.Env, name string, more ...string) cmdtest.Result {
		return cmdtest.Run(t, env, "relay", slices.Concat(strings.Fields(name), more, strings.Fields(onKafka[name]))...)
	}
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", "{}", "{}")

	p := cmdtest.Start(t, secure, "relay", "run")
	p.WaitFor(t, "the events to be published", func() bool { st := readStatus(t, env); return st.Cursor != nil && st.Backlog.Events == 0 })
	want(t, p.Terminate(t), 0)
	want(t, call(secure, "doctor"), 0, "topic quakes: 1 partition, max.message.bytes", "topic quakes: this login may write to it")
	want(t, call(secure, "republish"), 0, "2 events, 0 skip markers and 0 end records published again")
	want(t, call(secure, "verify"), 0, "2 events, 4 records in Kafka", "no disagreement")
	cmdtest.Exec(t, dsn, "update fenceline.relay_topic set partitions = 2")
	want(t, call(secure, "topic accept"), 0, `accepted topic "quakes" with 1 partition, which is what it has`)

	// The broker does insist.
	cmdtest.Exec(t, dsn, "update fenceline.relay_topic set partitions = 2")
	want(t, call(env, "topic accept"), 1, "nothing was accepted, since the topic can't be looked at", "do TLS and SASL settings match this port?")
}

// A dial alone finds none of these, and no topic has to be there to find them.
func TestAWayToKafkaThatDoesNotFitIsOneProblemWithTheFlagsThatMendIt(t *testing.T) {
	cert, key := kafkatest.Certificate(t)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	file := func(pem []byte) string {
		name := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(name, pem, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	another, _ := kafkatest.Certificate(t)
	ca := file(cert)
	cluster := kafkatest.Kfake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", secret))
	dsn := cmdtest.Migrated(t)
	for name, c := range map[string]struct {
		env    cmdtest.Env
		cause  string
		remedy string
	}{
		"authority": {cmdtest.Env{"TLS=true", "CA_FILE=" + file(another), "SASL=scram-sha-512", "USER=relay", "PASSWORD=" + secret}, "not trusted", "-kafka-ca-file"},
		"name":      {cmdtest.Env{"TLS=true", "CA_FILE=" + ca, "SERVER_NAME=elsewhere.example", "SASL=scram-sha-512", "USER=relay", "PASSWORD=" + secret}, "elsewhere.example", "-kafka-server-name"},
		"password":  {cmdtest.Env{"TLS=true", "CA_FILE=" + ca, "SASL=scram-sha-512", "USER=relay", "PASSWORD=" + secret + "0"}, "login", "-kafka-user, -kafka-password"},
		"user":      {cmdtest.Env{"TLS=true", "CA_FILE=" + ca, "SASL=scram-sha-512", "USER=nobody", "PASSWORD=" + secret}, "login", "-kafka-user, -kafka-password"},
		"mechanism": {cmdtest.Env{"TLS=true", "CA_FILE=" + ca, "SASL=scram-sha-256", "USER=relay", "PASSWORD=" + secret}, "log", "-kafka-sasl"},
		"no login":  {cmdtest.Env{"TLS=true", "CA_FILE=" + ca}, "ended the connection", "port"},
		"no TLS":    {nil, "do TLS and SASL settings match this port?", "-kafka-tls"},
	} {
		t.Run(name, func(t *testing.T) {
			env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + cluster.ListenAddrs()[0], "FENCELINE_HTTP=off"}
			for _, e := range c.env {
				env = append(env, "FENCELINE_KAFKA_"+e)
			}
			for _, args := range []string{"doctor", "doctor -topics a,b,c", "run -topics a,b,c", "verify"} {
				r := cmdtest.Run(t, env, "relay", strings.Fields(args)...)
				want(t, r, 1, "can't use Kafka at ", c.cause, c.remedy)
				if n := strings.Count(r.All(), "can't use Kafka at "); n != 1 {
					t.Errorf("relay %s: %d problems of one cause:\n%s", args, n, r.All())
				}
				if strings.Contains(r.All(), "kafka.(") || strings.Contains(r.All(), "kafkapub") {
					t.Errorf("relay %s prints internals:\n%s", args, r.All())
				}
			}
		})
	}
}

// It would be decoded, and the length of a list be a billion.
func TestAPortAtWhichSomethingElseListensEndsNoCommandForWantOfMemory(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	database, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + database.Host, "FENCELINE_HTTP=off"}
	for name, more := range onKafka {
		want(t, cmdtest.Run(t, env, "relay", slices.Concat(strings.Fields(name), strings.Fields(more))...), 1, "can't use Kafka at "+database.Host, "is not Kafka", "check the port", "-kafka-tls")
	}
}
