package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// nobody is an address at which nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only the port was wanted
	return l.Addr().String()
}

// with changes a connection string.
func with(t *testing.T, dsn string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestAnUnusableDatabaseEndsWith1AndNamesItNotThePassword(t *testing.T) {
	dsn := cmdtest.Database(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dsn   string
		texts []string
	}{
		"unreachable":    {"postgres://u:" + secret + "@" + nobody(t) + "/db", []string{"refused", "check host and port in -postgres", `database "db"`, `user "u"`}},
		"no such host":   {"postgres://u:" + secret + "@nowhere.invalid/db", []string{"nowhere.invalid", "-postgres"}},
		"wrong password": {with(t, dsn, func(u *url.URL) { u.User = url.UserPassword("postgres", secret) }), []string{u.Host, "password authentication failed", "check user and password"}},
		"no such login":  {with(t, dsn, func(u *url.URL) { u.User = url.UserPassword("nobody", secret) }), []string{"nobody", "check user and password"}},
		"no such database": {with(t, dsn, func(u *url.URL) { u.Path = "/nothing_here" }),
			[]string{`database "nothing_here" does not exist`, "create it"}},
	} {
		for _, command := range []string{"run -kafka 127.0.0.1:1", "status", "migrate up", "migrate status"} {
			t.Run(name+"/"+command, func(t *testing.T) {
				r := cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + c.dsn}, "relay", strings.Fields(command)...)
				want(t, r, 1, append(c.texts, "relay: can't use PostgreSQL at ")...)
				if password, _ := u.User.Password(); strings.Contains(r.All(), password) {
					t.Error("the real password was printed")
				}
				if n := strings.Count(r.All(), "\n"); n != 1 {
					t.Errorf("%d lines, want one:\n%s", n, r.All())
				}
			})
		}
	}
}

func TestASchemaThatDoesNotFitEndsWith1AndSaysWhatIsThereAndWhatIsNeeded(t *testing.T) {
	broker, level := kafkatest.Broker(t), schema.Level(schema.Producer)
	for name, c := range map[string]struct {
		prepare []string // relay commands
		sql     string
		texts   []string
	}{
		"missing": {nil, "", []string{"schema missing", fmt.Sprintf("have migration 0, want %d", level), "relay migrate up"}},
		"too old: only the consumer's part": {[]string{"migrate up -part consumer"}, "",
			[]string{"producer part", fmt.Sprintf("have migration 0, want %d", level), "relay migrate up"}},
		"too new": {[]string{"migrate up"}, "insert into fenceline.schema_version (part, version, name, checksum, min_library, schema_name) select distinct part, 999, 'later', '', 999, schema_name from fenceline.schema_version where part = 'producer'",
			[]string{"library too old", fmt.Sprintf("have library level %d, want at least 999", level), "upgrade this program"}},
		"renamed": {[]string{"migrate up -schema before"}, "alter schema before rename to fenceline",
			[]string{`migrated under the name "before"`, "alter schema"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Database(t), "FENCELINE_KAFKA_BROKERS=" + broker}
			for _, command := range c.prepare {
				want(t, cmdtest.Run(t, env, "relay", strings.Fields(command)...), 0)
			}
			if c.sql != "" {
				cmdtest.Exec(t, strings.TrimPrefix(env[0], "FENCELINE_POSTGRES_DSN="), c.sql)
			}
			want(t, cmdtest.Run(t, env, "relay", "run"), 1, c.texts...)
			want(t, cmdtest.Run(t, env, "relay", "status"), 1, c.texts...)
		})
	}
}

func TestALoginWithoutTheRoleIsToldWhichOneToGrant(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn), "FENCELINE_KAFKA_BROKERS=" + kafkatest.Broker(t)}
	want(t, cmdtest.Run(t, env, "relay", "run"), 1, "grant", "fenceline_relay")
	want(t, cmdtest.Run(t, env, "relay", "status"), 1, "grant", "fenceline_monitor")
	env[0] = "FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")
	want(t, cmdtest.Run(t, env, "relay", "run"), 1, "fenceline_relay")
}

// A sidecar that ended here would keep its application from starting for as long
// as an outage of Kafka takes.
func TestARelayThatStartsDuringAnOutageOfKafkaWaitsItOut(t *testing.T) {
	dsn := "FENCELINE_POSTGRES_DSN=" + cmdtest.Migrated(t)
	hangs, _ := silent(t)
	for name, c := range map[string]struct{ brokers, cause string }{
		"nobody is there":                       {nobody(t), "refused"},
		"it takes connections and hangs":        {hangs, "no answer in time"},
		"one hangs, and the other is not there": {hangs + "," + nobody(t), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // what hangs has ten seconds to answer
			p := cmdtest.Start(t, cmdtest.Env{dsn, "FENCELINE_KAFKA_BROKERS=" + c.brokers, "FENCELINE_TOPICS=quakes", "FENCELINE_HTTP=127.0.0.1:0"}, "relay", "run")
			probe := cmdtest.Env{"FENCELINE_HTTP=" + serving(t, p)}
			p.WaitFor(t, "being ready", func() bool { return cmdtest.Run(t, probe, "relay", "probe", "readyz").Code == 0 })
			want(t, cmdtest.Run(t, probe, "relay", "probe", "livez"), 0)
			want(t, p.Terminate(t), 0, "no Kafka broker can be reached", strings.ReplaceAll(c.brokers, ",", " "), c.cause, "check -kafka")
		})
	}
}

// silent is a server that takes connections and says nothing.
func silent(t *testing.T) (addr string, met <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var clients []net.Conn
	first, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if clients = append(clients, c); len(clients) == 1 {
				close(first)
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range clients {
			_ = c.Close()
		}
	})
	return l.Addr().String(), first
}

// A rollout that is taken back stops what has just begun.
func TestARelayThatIsToldToStopWhileItStartsEndsWith0(t *testing.T) {
	database, asked := silent(t)
	p := cmdtest.Start(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=postgres://u@" + database + "/db?sslmode=disable&connect_timeout=600", "FENCELINE_KAFKA_BROKERS=127.0.0.1:1"}, "relay", "run")
	p.WaitFor(t, "the database to be asked", func() bool { return closed(asked) })
	want(t, p.Terminate(t), 0)

	broker, asked := silent(t)
	p = cmdtest.Start(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Migrated(t), "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_HTTP=off"}, "relay", "run")
	p.WaitFor(t, "the broker to be asked", func() bool { return closed(asked) })
	want(t, p.Terminate(t), 0)
}

func TestACommandThatIsInterruptedSaysSo(t *testing.T) {
	database, asked := silent(t)
	p := cmdtest.Start(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=postgres://u@" + database + "/db?sslmode=disable&connect_timeout=600"}, "relay", "status")
	p.WaitFor(t, "the database to be asked", func() bool { return closed(asked) })
	want(t, p.Terminate(t), 1, "relay: interrupted before it was done: ")

	// What it could not look at any more is no problem of the database's.
	broker, asked := silent(t)
	p = cmdtest.Start(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Migrated(t), "FENCELINE_KAFKA_BROKERS=" + broker}, "relay", "doctor")
	p.WaitFor(t, "the broker to be asked", func() bool { return closed(asked) })
	r := p.Terminate(t)
	want(t, r, 1, "relay: interrupted before it was done: ")
	if r.Stdout != "" {
		t.Errorf("what was cut off was printed as findings:\n%s", r.Stdout)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestTopicsThatCannotBeUsedEndWith1AndAreAllNamed(t *testing.T) {
	broker := kafkatest.Broker(t)
	compacted := kafkatest.Topic(t, broker, 1, "cleanup.policy=compact")
	small := kafkatest.Topic(t, broker, 1, "max.message.bytes=1000")
	good := kafkatest.Topic(t, broker, 1)
	missing := kafkatest.Name(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Migrated(t), "FENCELINE_KAFKA_BROKERS=" + broker}
	r := cmdtest.Run(t, env, "relay", "run", "-topics", strings.Join([]string{missing, compacted, good, small}, ","))
	want(t, r, 1,
		fmt.Sprintf("topic %q: ", missing), "create it",
		fmt.Sprintf("topic %q: its cleanup.policy is \"compact\"", compacted), "set cleanup.policy=delete",
		fmt.Sprintf("topic %q: its max.message.bytes is 1000", small), "set max.message.bytes to at least")
	if strings.Contains(r.All(), fmt.Sprintf("topic %q", good)) {
		t.Errorf("the good topic is complained about:\n%s", r.All())
	}
}
