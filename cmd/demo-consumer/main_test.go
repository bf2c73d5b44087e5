package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

func want(t *testing.T, r cmdtest.Result, code int, texts ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d", r.Code, code)
	}
	for _, text := range texts {
		if !strings.Contains(r.All(), text) {
			t.Errorf("what was printed doesn't contain %q", text)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", r.Stdout, r.Stderr)
	}
}

func quake(id int, net string, magnitude float64) string {
	return fmt.Sprintf(`{"id":"%s%d","net":%q,"updated":1700000000000,"mag":%.1f}`, net, id, net, magnitude)
}

func TestTheServiceAppliesWhatTheRelayPublishesAndReportsIt(t *testing.T) {
	dsn, broker := cmdtest.Database(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 3)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_TOPIC=" + topic, "FENCELINE_CONSUMER=" + topic, "FENCELINE_HTTP=127.0.0.1:0"}
	want(t, cmdtest.Run(t, env, "relay", "migrate", "up"), 0)
	want(t, cmdtest.Run(t, env, "demo-consumer", "migrate"), 0)
	want(t, cmdtest.Run(t, env, "demo-consumer", "migrate"), 0) // again
	want(t, cmdtest.Run(t, env, "demo-consumer", "report"), 0, "network", "all")

	relay := cmdtest.Start(t, env, "relay", "run")
	consumer := cmdtest.Start(t, env, "demo-consumer", "run")
	cmdtest.Commit(t, dsn, topic, "ci", readmodel.EventType, quake(1, "ci", 1.5), quake(2, "ci", 4.2), quake(3, "ci", 2))
	cmdtest.Commit(t, dsn, topic, "nc", readmodel.EventType, quake(1, "nc", 3))
	reports := func() string { return cmdtest.Run(t, env, "demo-consumer", "report").Stdout }
	consumer.WaitFor(t, "four reports", func() bool { return strings.Contains(reports(), " all        4 ") })
	for _, row := range []string{" ci        3      4.2  2023-11-14T22:13:20Z", " nc        1      3.0  2023-11-14T22:13:20Z"} {
		if got := reports(); !strings.Contains(got, row) {
			t.Errorf("no row %q in\n%s", row, got)
		}
	}
	want(t, consumer.Terminate(t), 0)
	want(t, relay.Terminate(t), 0)

	// What was applied stays applied when the service comes back.
	consumer = cmdtest.Start(t, env, "demo-consumer", "run")
	cmdtest.Commit(t, dsn, topic, "uw", readmodel.EventType, quake(1, "uw", 1))
	relay = cmdtest.Start(t, env, "relay", "run")
	consumer.WaitFor(t, "the fifth report", func() bool { return strings.Contains(reports(), " all        5 ") })
	want(t, consumer.Terminate(t), 0)
	want(t, relay.Terminate(t), 0)
}

func TestWhatTheServiceCannotWorkWithIsSaidAtTheStart(t *testing.T) {
	broker := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 1)
	env := func(dsn string) cmdtest.Env {
		return cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_TOPIC=" + topic, "FENCELINE_HTTP=off"}
	}
	empty := env(cmdtest.Database(t))
	for _, command := range []string{"run", "report"} {
		want(t, cmdtest.Run(t, empty, "demo-consumer", command), 1, "the read model's table can't be used", `run "demo-consumer migrate"`)
	}
	cmdtest.Exec(t, strings.TrimPrefix(empty[0], "FENCELINE_POSTGRES_DSN="), "create schema quake_report", "create table quake_report.network (net text, reports bigint, largest float8, last_update timestamptz)")
	want(t, cmdtest.Run(t, empty, "demo-consumer", "run"), 1, "consumer part", "schema missing", "have migration 0, want ", "relay migrate up")

	dsn := cmdtest.Database(t)
	want(t, cmdtest.Run(t, env(dsn), "demo-consumer", "migrate"), 0)
	cmdtest.Exec(t, dsn, "grant usage on schema quake_report to public", "grant select on quake_report.network to public")
	want(t, cmdtest.Run(t, env(pgmigrated.Login(t, dsn)), "demo-consumer", "run"), 1, "fenceline_consumer", "grant")
	want(t, cmdtest.Run(t, env(dsn), "demo-consumer", "run", "-topic", "nothing-here"), 1, `topic "nothing-here" does not exist`, "create it")
	compacted := kafkatest.Topic(t, broker, 1, "cleanup.policy=compact")
	want(t, cmdtest.Run(t, env(dsn), "demo-consumer", "run", "-topic", compacted), 1, compacted, "cleanup.policy=delete")
	want(t, cmdtest.Run(t, env(dsn), "demo-consumer", "run", "-kafka", "127.0.0.1:1"), 1, "no Kafka broker can be reached at 127.0.0.1:1")
}

func TestAWrongCommandLineOfTheServiceEndsWith2(t *testing.T) {
	for args, texts := range map[string][]string{
		"":                            {"a command is missing", "report"},
		"consume":                     {`unknown command "consume"`},
		"run":                         {"2 problems", "-postgres is missing", "-kafka is missing"},
		"report -postgres mydatabase": {"-postgres: is not a connection string"},
		`report -model-schema x";y`:   {"-model-schema", "is not allowed"},
		"run -http here":              {"-http", "want host:port"},
		"run -strict -kafka x":        {`unknown flag "-strict"`, "host:port"},
		"migrate -postgres host=h x":  {"unexpected argument"},
		"run -postgres host=127.0.0.1 -kafka 127.0.0.1:1 -kafka-ca-file ca.pem": {"-kafka-ca-file: it is set, but TLS is off: turn it on with -kafka-tls"},
	} {
		t.Run(args, func(t *testing.T) {
			want(t, cmdtest.Run(t, nil, "demo-consumer", strings.Fields(args)...), 2, texts...)
		})
	}
	want(t, cmdtest.Run(t, nil, "demo-consumer", "version"), 0, "demo-consumer ")
}
