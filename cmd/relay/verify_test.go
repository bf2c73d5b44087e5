package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/verify"
)

// The comparison of a chain that works finds nothing; of one with a record in
// Kafka that the database has lost, it finds that, says so and ends with 1.
func TestVerifyComparesDatabaseAndTopics(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 3)
	login := pgmigrated.Login(t, dsn, "relay", "monitor")
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + login, "FENCELINE_KAFKA_BROKERS=" + broker}
	for _, key := range []string{"ci", "nc", "us"} {
		cmdtest.Commit(t, dsn, topic, key, "quake.reported", `{"n":1}`, `{"n":2}`, `{"n":3}`)
	}
	want(t, cmdtest.Run(t, env, "relay", "verify"), 0, "9 events not published yet", "no disagreement")

	p := cmdtest.Start(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker}, "relay", "run")
	p.WaitFor(t, "nine records in Kafka", func() bool { return len(kafkatest.Records(t, broker, topic)) == 9 })
	want(t, p.Terminate(t), 0)
	want(t, cmdtest.Run(t, env, "relay", "verify"), 0, "3 streams, 9 events, 9 records in Kafka (0 of them copies)", "no disagreement")

	// What a restore to a moment before the last commit leaves behind.
	cmdtest.Exec(t, dsn, "delete from fenceline.outbox where key = 'nc' and seq = 3", "delete from fenceline.head where key = 'nc'",
		"insert into fenceline.head (topic, key, epoch, seq) select topic, key, epoch, seq from fenceline.outbox where key = 'nc' and seq = 2")
	want(t, cmdtest.Run(t, env, "relay", "verify"), 1, "phantom stream="+topic+` key="nc"`, "1 phantom:", "decide per key")
	r := cmdtest.Run(t, env, "relay", "verify", "-json")
	want(t, r, 1)
	var lines []map[string]any
	for line := range strings.Lines(r.Stdout) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines = append(lines, v)
	}
	if len(lines) != 2 || lines[0]["kind"] != string(verify.Phantom) || lines[0]["remedy"] == "" || lines[1]["summary"] == nil {
		t.Errorf("%v", lines)
	}
}

func TestVerifyNeedsItsRolesAndAConsumerThatExists(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	kafka := "FENCELINE_KAFKA_BROKERS=" + broker
	monitor := pgmigrated.Login(t, dsn, "monitor")
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + monitor, kafka}, "relay", "verify"), 1, "fenceline_relay")
	both := pgmigrated.Login(t, dsn, "relay", "monitor")
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + both, kafka}, "relay", "verify", "-consumers", "nobody"), 1, `consumer "nobody" has never read anything`, "-consumer-postgres", "-consumer-schema")
	// The image has no directory for temporary files.
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + both, kafka, "TMPDIR=/does/not/exist"}, "relay", "verify"), 1, "/does/not/exist", "-dir")
	r := cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + both, kafka}, "relay", "verify", "-topics", "nosuch")
	want(t, r, 1, "Kafka doesn't have it, and the outbox has no events of it", "check the name")
	if strings.Contains(r.All(), "events belong to it") {
		t.Error("events are said to belong to a topic that nothing was appended to")
	}
}

// What is wrong with the consumers' database is said of it, and not of the outbox's.
func TestVerifySaysWhatIsWrongWithTheConsumersDatabase(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay", "monitor"), "FENCELINE_KAFKA_BROKERS=" + broker}
	want(t, cmdtest.Run(t, env, "relay", "verify", "-consumers", "a", "-consumer-postgres", "postgres://u:"+secret+"@"+nobody(t)+"/db"), 1, "check host and port in -consumer-postgres,")
	for _, kinds := range [][]string{{"producer"}, {}} {
		r := cmdtest.Run(t, env, "relay", "verify", "-consumers", "a", "-consumer-postgres", pgmigrated.Login(t, dsn, kinds...))
		want(t, r, 1, `needs the role "fenceline_monitor"`)
		if strings.Contains(r.All(), "fenceline_relay") {
			t.Errorf("a login %q is to have the relay's role, too: %s", kinds, r.All())
		}
	}
}

// Who has chosen a schema for both parts says so once.
func TestVerifyLooksForGuardsInTheSchemaOfTheOutbox(t *testing.T) {
	dsn, broker := cmdtest.Database(t), kafkatest.Broker(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_SCHEMA=elsewhere"}
	want(t, cmdtest.Run(t, env, "relay", "migrate", "up"), 0)
	want(t, cmdtest.Run(t, env, "relay", "verify", "-consumers", "nobody"), 1, `consumer "nobody" has never read anything`)
	want(t, cmdtest.Run(t, env, "relay", "verify", "-consumers", "nobody", "-consumer-schema", "fenceline"), 1, "schema missing")
}
