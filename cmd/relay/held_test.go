package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// heldAt holds a stream of the topic at a seq, as the relay does.
func heldAt(t *testing.T, dsn, key string, seq string) {
	t.Helper()
	cmdtest.Exec(t, dsn, `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail)
		select topic, key, pos, epoch, seq, 'too large', 'code 10' from fenceline.outbox where key = '`+key+`' and seq = `+seq)
}

func TestHeldStreamsAreListedShownRetriedAndSkipped(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	operator := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, monitor, "relay", "held", "list"), 0, "no streams are held")
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", "{}", "{}", "{}")
	cmdtest.Commit(t, dsn, "quakes", "nc", "quake.reported", "{}")
	heldAt(t, dsn, "ci", "2")
	heldAt(t, dsn, "nc", "1")

	want(t, cmdtest.Run(t, monitor, "relay", "held", "list"), 0, `topic "quakes", key "ci": held, from epoch`, "seq 2", "reason: too large")
	want(t, cmdtest.Run(t, monitor, "relay", "held", "list", "-limit", "1"), 0, "there are more")
	if r := relayJSON[heldReport](t, monitor, "held", "list", "-key", "ci", "-json"); len(r.Held) != 1 || r.Held[0].State != "held" || r.Held[0].Detail != "code 10" || r.Held[0].AskedAt != nil || r.More {
		t.Errorf("%+v", r)
	}
	want(t, cmdtest.Run(t, monitor, "relay", "held", "show", "-topic", "quakes", "-key", "ci"), 0, `record: data "quake.reported"`, "waiting: 2 events of the stream")
	want(t, cmdtest.Run(t, monitor, "relay", "held", "show", "-topic", "quakes", "-key", "nobody"), 1, "no stream of topic", "relay held list")

	// Reading is the monitor's, deciding is not.
	want(t, cmdtest.Run(t, monitor, "relay", "held", "retry", "-topic", "quakes", "-key", "ci"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, monitor, "relay", "held", "skip", "-topic", "quakes", "-key", "ci"), 1, "fenceline_operator")

	want(t, cmdtest.Run(t, operator, "relay", "held", "skip", "-topic", "quakes", "-key", "ci", "-through", "9"), 1, "from seq 2 to 9 there are 2 records", "newest record")
	want(t, cmdtest.Run(t, operator, "relay", "held", "skip", "-topic", "quakes", "-key", "ci", "-through", "3", "-who", "alice", "-why", "corrupt"), 0, "gave up seq 2 to 3")
	want(t, cmdtest.Run(t, operator, "relay", "held", "retry", "-topic", "quakes", "-key", "ci"), 1, "skipped by alice", "never be published again")
	want(t, cmdtest.Run(t, monitor, "relay", "held", "show", "-topic", "quakes", "-key", "ci"), 0, `asked:  by "alice"`, `because "corrupt"`, "given up: skipped", `held skip by "alice"`)
	d := relayJSON[heldDetail](t, monitor, "held", "show", "-topic", "quakes", "-key", "ci", "-json")
	if d.Held == nil || d.Held.State != "skip" || d.Held.SkipTo != 3 || d.Event == nil || d.Event.Verdict != "skipped" || len(d.Audit) != 1 || d.Audit[0].Who != "alice" || d.Waiting != 2 {
		t.Errorf("%+v", d)
	}

	want(t, cmdtest.Run(t, operator, "relay", "held", "retry", "-all", "-limit", "1"), 0, "there are more", "run this again")
	some := relayJSON[retried](t, operator, "held", "retry", "-all", "-limit", "1", "-json")
	if len(some.Asked)+len(some.Refused) != 1 || !some.More {
		t.Errorf("%+v", some)
	}
	r := relayJSON[retried](t, operator, "held", "retry", "-all", "-json")
	if r.More {
		t.Errorf("%+v", r)
	}
	if len(r.Asked) != 1 || r.Asked[0].Key != "nc" || len(r.Refused) != 1 || r.Refused[0].Key != "ci" {
		t.Errorf("%+v", r)
	}
	want(t, cmdtest.Run(t, operator, "relay", "held", "skip", "-topic", "quakes", "-key", "nc"), 1, "a retry was asked for", "on its way")
}

func TestTopicsAreListedRetiredAndAccepted(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	operator := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, monitor, "relay", "topic", "list"), 0, "no topics")
	cmdtest.Exec(t, dsn, "insert into fenceline.relay_topic (topic, partitions) values ('quakes', 3)")
	want(t, cmdtest.Run(t, monitor, "relay", "topic", "list"), 0, `"quakes" 3 partitions since`)
	want(t, cmdtest.Run(t, monitor, "relay", "topic", "retire", "quakes"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, monitor, "relay", "topic", "accept", "-partitions", "4", "-drained", "quakes"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, operator, "relay", "topic", "retire", "quakes"), 1, "not refused by the broker", "Delete it first")
	want(t, cmdtest.Run(t, operator, "relay", "topic", "accept", "-partitions", "4", "quakes"), 1, "unread", "lag of every consumer group", "Say -drained")
	want(t, cmdtest.Run(t, operator, "relay", "topic", "retire", "nosuch"), 1, "never written to topic nosuch", "relay topic list")
	want(t, cmdtest.Run(t, operator, "relay", "topic", "accept", "-partitions", "4", "-drained", "quakes"), 0, `accepted topic "quakes" with 4 partitions`, "No broker was asked", "goes on refusing it")
	if r := relayJSON[topicReport](t, monitor, "topic", "list", "-json"); len(r.Topics) != 1 || r.Topics[0].Partitions != 4 || r.Topics[0].RetiredAt != nil || r.Topics[0].Refused != "" {
		t.Errorf("%+v", r)
	}
}

// A wrong count would change nothing for the better, and promise something else.
func TestATopicIsAcceptedOnlyAsTheBrokerSaysThatItIs(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic, compacted, missing := kafkatest.Topic(t, broker, 3), kafkatest.Topic(t, broker, 3, "cleanup.policy=compact"), kafkatest.Name(t)
	cmdtest.Exec(t, dsn, "insert into fenceline.relay_topic (topic, partitions) select topic, 1 from unnest(array['"+topic+"', '"+compacted+"', '"+missing+"']) topic")
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator"), "FENCELINE_KAFKA_BROKERS=" + broker}
	accept := func(env cmdtest.Env, topic, partitions string) cmdtest.Result {
		return cmdtest.Run(t, env, "relay", "topic", "accept", "-partitions", partitions, "-drained", topic)
	}
	want(t, accept(env, topic, "4"), 1, fmt.Sprintf("nothing was accepted: topic %q has 3 partitions, not 4: say -partitions 3", topic))
	want(t, accept(env, compacted, "3"), 1, "nothing was accepted, the relay would not write to topic ", "cleanup.policy")
	want(t, accept(env, missing, "3"), 1, "nothing was accepted, the relay would not write to topic ", "create it")
	want(t, accept(append(env[:1:1], "FENCELINE_KAFKA_BROKERS="+nobody(t)), topic, "3"), 1, "nothing was accepted, since the topic can't be looked at", "without -kafka it is accepted unseen", "no Kafka broker can be reached")
	if r := relayJSON[topicReport](t, env[:1], "topic", "list", "-json"); len(r.Topics) != 3 || r.Topics[0].Partitions+r.Topics[1].Partitions+r.Topics[2].Partitions != 3 {
		t.Errorf("something was accepted: %+v", r)
	}
	want(t, cmdtest.Run(t, env[:1], "relay", "topic", "list"), 0, " 1 partition since")
	want(t, accept(env[:1], topic, "1"), 1, "pinned to 1 partition already")
	want(t, accept(env, topic, "3"), 0, fmt.Sprintf("accepted topic %q with 3 partitions, which is what it has", topic))
}

func TestTheCommandsOfHeldStreamsAndTopicsSayWhatIsRight(t *testing.T) {
	for command, text := range map[string]string{
		"held":                                  "a command is missing",
		"topic accept -partitions 0 quakes":     "-partitions is 0: a topic has at least one",
		"held drop":                             `unknown command "drop": there are list, show, retry and skip`,
		"held show -topic a":                    "-key is missing",
		"held retry":                            "want -topic and -key, or -all",
		"held retry -topic a":                   "want -topic and -key, or -all",
		"held retry -topic a -key k -all":       "want -topic and -key, or -all",
		"held skip -topic a -key k -through x":  "-through",
		"held skip -topic a -key k -through -1": "-through",
		"topic":                                 "a command is missing",
		"topic drop":                            `unknown command "drop": there are list, retire and accept`,
		"topic retire":                          "want one topic behind the flags",
		"topic accept -drained t":               "-partitions is missing",
		"republish":                             "nothing chooses the events",
		"republish -topic t":                    "nothing chooses the events",
		"republish -from-pos 5 -to-pos 4":       "the range of pos from 5 to 4 is empty",
		"republish -from yesterday":             "want a time such as",
		"republish -key k -rate 0":              "-rate",
	} {
		want(t, cmdtest.Run(t, settings, "relay", strings.Fields(command)...), 2, text)
	}
	want(t, cmdtest.Run(t, nil, "relay", "held", "-help"), 0, "relay held list|show|retry|skip")
	want(t, cmdtest.Run(t, nil, "relay", "topic", "-help"), 0, "relay topic list|retire|accept")
	want(t, cmdtest.Run(t, nil, "relay", "republish", "-help"), 0, "-from-pos", "-to-topic", "-rate", "_relay")
}

func TestRepublishPublishesAgainWhatTheRelayHasPublished(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic, other := kafkatest.Topic(t, broker, 1), kafkatest.Topic(t, broker, 1)
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", "{}", "{}", "{}")
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay"), "FENCELINE_KAFKA_BROKERS=" + broker}
	// The relay has never run.
	r := relayJSON[republishReport](t, env, "republish", "-key", "ci", "-json")
	if r.Events != 0 || len(r.Left) != 1 || r.Left[0].Count != 3 || r.Left[0].Reason != "not published yet" || r.Left[0].ToDo == "" {
		t.Errorf("%+v", r)
	}
	p := cmdtest.Start(t, env, "relay", "run")
	p.WaitFor(t, "three records in Kafka", func() bool { return len(kafkatest.Records(t, broker, topic)) == 3 })
	want(t, p.Terminate(t), 0)
	want(t, cmdtest.Run(t, env, "relay", "republish", "-key", "ci", "-dry-run"), 0, "3 events, 0 skip markers and 0 end records would be published again")
	want(t, cmdtest.Run(t, env, "relay", "republish", "-key", "ci", "-to-topic", other, "-who", "alice"), 0, "3 events, 0 skip markers and 0 end records published again, up to pos")
	// The same key, headers, value and timestamp.
	first, copies := kafkatest.Records(t, broker, topic), kafkatest.Records(t, broker, other)
	same := func(r *kgo.Record) string { return fmt.Sprintf("%q %q %v %v", r.Key, r.Value, r.Headers, r.Timestamp) }
	if len(copies) != 3 {
		t.Fatalf("%d copies", len(copies))
	}
	for i, r := range copies {
		if same(r) != same(first[i]) {
			t.Errorf("a copy is\n%s\nand not\n%s", same(r), same(first[i]))
		}
	}
	want(t, cmdtest.Run(t, env, "relay", "republish", "-key", "ci", "-to-topic", kafkatest.Name(t)), 1, "create it")
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor"), "FENCELINE_KAFKA_BROKERS=" + broker}
	want(t, cmdtest.Run(t, monitor, "relay", "republish", "-key", "ci"), 1, "fenceline_relay")
}
