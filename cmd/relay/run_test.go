package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func readStatus(t *testing.T, env cmdtest.Env) statusReport {
	t.Helper()
	r := cmdtest.Run(t, env, "relay", "status", "-json")
	want(t, r, 0)
	var st statusReport
	if err := json.Unmarshal([]byte(r.Stdout), &st); err != nil {
		t.Fatalf("%v:\n%s", err, r.Stdout)
	}
	return st
}

func TestRunPublishesWhatIsCommittedAndStopsWhenAskedTo(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 3)
	// With the rights of its role, and no more.
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay"), "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_TOPICS=" + topic, "FENCELINE_INSTANCE=relay-1"}
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", `{"n":1}`, `{"n":2}`)
	want(t, cmdtest.Run(t, monitor, "relay", "status"), 0, "active   none", "backlog  2 events", "never stored", `start one with "relay run"`)

	p := cmdtest.Start(t, env, "relay", "run")
	p.WaitFor(t, "two records in Kafka", func() bool { return len(kafkatest.Records(t, broker, topic)) == 2 })
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", `{"n":3}`)
	p.WaitFor(t, "the third", func() bool { return len(kafkatest.Records(t, broker, topic)) == 3 })
	p.WaitFor(t, "the cursor to be stored", func() bool { return readStatus(t, monitor).Backlog.Events == 0 })
	st := readStatus(t, monitor)
	if st.Active == nil || st.Active.Instance != "relay-1" || st.Cursor == nil || len(st.ToDo) != 0 {
		t.Errorf("status of a relay at work: %+v", st)
	}
	want(t, cmdtest.Run(t, monitor, "relay", "status"), 0, "active   relay-1", "backlog  none", "held     none", "refused  none")

	want(t, p.Terminate(t), 0, "relay starting", "level=INFO")
	if st := readStatus(t, monitor); st.Active != nil || st.Backlog.Events != 0 {
		t.Errorf("status after the stop: %+v, want no holder and no backlog", st)
	}
	var payloads []string
	for _, r := range kafkatest.Records(t, broker, topic) { // of one key, so of one partition
		payloads = append(payloads, string(r.Value))
	}
	if got := strings.Join(payloads, " "); got != `{"n":1} {"n":2} {"n":3}` {
		t.Errorf("in Kafka is %s", got)
	}
}

func TestASecondRelaySharesTheWorkAndTakesOver(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 1)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_LOG_FORMAT=json", "FENCELINE_HTTP=off"}
	shards := func(name string) int {
		for _, i := range readStatus(t, env).Instances {
			if i.Name == name {
				return len(i.Shards)
			}
		}
		return 0
	}
	first := cmdtest.Start(t, env, "relay", "run", "-instance", "first")
	first.WaitFor(t, "all shards", func() bool { return shards("first") == 64 })
	second := cmdtest.Start(t, env, "relay", "run", "-instance", "second")
	second.WaitFor(t, "its half", func() bool { return shards("second") == 32 && shards("first") == 32 })
	want(t, first.Terminate(t), 0)
	second.WaitFor(t, "all of them", func() bool { return shards("second") == 64 })
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", `{}`)
	second.WaitFor(t, "the record", func() bool { return len(kafkatest.Records(t, broker, topic)) == 1 })
	r := second.Terminate(t)
	want(t, r, 0)
	for line := range strings.Lines(r.Stderr) {
		if !json.Valid([]byte(line)) {
			t.Errorf("the log isn't JSON: %s", line)
		}
	}
}

func TestARefusedTopicIsInTheStatusAndGoesOnOnceItIsMended(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	missing, good := kafkatest.Name(t), kafkatest.Topic(t, broker, 1)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker}
	cmdtest.Commit(t, dsn, missing, "ci", "quake.reported", `{"n":1}`)
	cmdtest.Commit(t, dsn, good, "nc", "quake.reported", `{"n":2}`)

	p := cmdtest.Start(t, env, "relay", "run")
	p.WaitFor(t, "the good topic's record", func() bool { return len(kafkatest.Records(t, broker, good)) == 1 })
	p.WaitFor(t, "the missing topic in the status", func() bool { return len(readStatus(t, env).Refused) == 1 })
	if f := readStatus(t, env).Refused[0]; f.Topic != missing || f.Events != 1 || f.Reason == "" || f.ToDo == "" {
		t.Errorf("status says %+v of the missing topic", f)
	}
	want(t, cmdtest.Run(t, env, "relay", "status"), 0, "refused  1 topic", missing, "1 event waiting", "create it", "goes on by itself")

	kafkatest.CreateTopic(t, broker, missing, 1)
	p.WaitFor(t, "its record", func() bool { return len(kafkatest.Records(t, broker, missing)) == 1 })
	p.WaitFor(t, "the status to be clear", func() bool { st := readStatus(t, env); return len(st.Refused) == 0 && st.Backlog.Events == 0 })
	want(t, p.Terminate(t), 0)
}
