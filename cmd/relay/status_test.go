package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/relay"
)

func TestStatusOfAHealthyEmptySystemEndsWith0WithoutKafkaAndAsMonitor(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	want(t, cmdtest.Run(t, env, "relay", "status"), 0, "schema   fenceline", "active   none", "backlog  none", "never stored", "held     none", "refused  none")
	r := cmdtest.Run(t, env, "relay", "status", "-json")
	var st map[string]any
	if err := json.Unmarshal([]byte(r.Stdout), &st); err != nil {
		t.Fatalf("%v:\n%s", err, r.Stdout)
	}
	for _, list := range []string{"held_streams", "refused_topics", "to_do"} {
		if l, ok := st[list].([]any); !ok || len(l) != 0 {
			t.Errorf("%s is %v, want an empty list", list, st[list])
		}
	}
	if active, ok := st["active"]; !ok || active != nil {
		t.Errorf("active is %v, want null", active)
	}
}

func TestStatusShowsHeldStreamsAndWhatToDo(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", "{}", "{}")
	cmdtest.Exec(t, dsn, `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail)
		select topic, key, pos, epoch, seq, 'the broker''s own reason', 'code 10' from fenceline.outbox where seq = 2`)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	want(t, cmdtest.Run(t, env, "relay", "status"), 0,
		"held     1 stream", `topic "quakes", key "ci"`, "seq 2", "reason: the broker's own reason", "to do:  \"relay held show -topic ", "backlog  1 event")
	cmdtest.Exec(t, dsn, "select fenceline.relay_held_skip('quakes', 'ci', null, 'alice', 'why not')")
	want(t, cmdtest.Run(t, env, "relay", "status"), 0, `asked:  skip by "alice"`, "was given up (up to seq 2)", "held streams are to be resumed and no relay is active")
	st := readStatus(t, env)
	if len(st.Held) != 1 || st.Held[0].State != "skip" || st.Held[0].AskedAt == nil {
		t.Errorf("held streams: %+v", st.Held)
	}
	if len(st.Held) != 1 || st.Held[0].Seq != 2 || st.Held[0].Detail != "code 10" || st.Held[0].ToDo == "" {
		t.Errorf("held streams: %+v", st.Held)
	}
}

// What no test brings about in reasonable time.
func TestStatusSaysWhatToDoWhenEventsWait(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	busy := relay.Status{Now: now, Holder: "relay-1", Epoch: 7, Token: 3, LeaseExpires: now.Add(8 * time.Second), Published: true, CursorAge: 1500 * time.Millisecond}
	late := busy
	late.Backlog, late.More, late.Oldest = 100_000, true, 3*time.Minute
	orphaned := late
	orphaned.Holder = ""
	forked := late
	forked.Forks = []relay.ForkStatus{{Topic: "gone", Partition: -1, Reason: "it doesn't exist: create it", Backlog: 4, Since: now}}
	held := func(key string, state relay.HeldState) relay.HeldInfo {
		return relay.HeldInfo{HeldStream: relay.HeldStream{Topic: "quakes", Key: key, Seq: 2, Since: now, Reason: "too large"}, State: state, AskedBy: "alice", AskedAt: now, SkipTo: 3}
	}
	asked := busy
	asked.Held = []relay.HeldInfo{held("ci", relay.StateRetry), held("nc", relay.StateSkip), held("it is $5", relay.StateHeld)}
	asked.Forks = []relay.ForkStatus{{Topic: "quakes", Partition: -1, Reason: "unknown", Since: now}, {Topic: "gone", Partition: -1, Since: now, Retired: true}, {Topic: "tremors", Partition: 4, Since: now}}
	unasked := orphaned
	unasked.Forks = []relay.ForkStatus{{Topic: "quakes", Partition: -1, Reason: "not described", Since: now, Backlog: 2, Unasked: true}}
	askedOfNobody := asked
	askedOfNobody.Holder = ""
	for name, c := range map[string]struct {
		st    relay.Status
		texts []string
		not   string
	}{
		"healthy":       {busy, []string{"2026-01-02T03:04:05Z", "relay-1, epoch 7, token 3; its lease ends in 8s", "stored 1.5s ago", "backlog  none"}, "to do"},
		"late":          {late, []string{"at least 100000 events, the oldest has waited 3m0s", "to do    an event has been waiting for 3m0s: look into the log of relay-1"}, ""},
		"nobody active": {orphaned, []string{"active   none", `to do    events wait and no relay is active: start one with "relay run"`}, "look into the log of ,"},
		"topic refused": {forked, []string{"refused  1 topic", `"gone" since 2026-01-02T03:04:05Z, 4 events waiting`, "it doesn't exist: create it", "goes on by itself"}, "look into the log"},
		"decided": {asked, []string{"held     3 streams", `asked:  retry by "alice" at 2026-01-02T03:04:05Z`, `asked:  skip by "alice" at`, "to do:  nothing: it is to be published again",
			"to do:  nothing: what the broker refuses was given up (up to seq 3)", `to do:  "relay held show -topic quakes -key 'it is $5'" shows the record`,
			`refused  2 topics and 1 partition`, `"quakes" since 2026-01-02T03:04:05Z, nothing waits for it but 3 held streams`, `topic "tremors", partition 4, since 2026-01-02T03:04:05Z, nothing waits for it`,
			"to do:  nothing: the topic is retired"}, "0 events waiting"},
		"set aside at a stop":        {unasked, []string{"reason: not described", "to do:  nothing: it is no refusal"}, "mend what the reason names"},
		"decided, and nobody active": {askedOfNobody, []string{"to do    held streams are to be resumed and no relay is active"}, ""},
	} {
		text := newStatusReport("fenceline", c.st).text()
		for _, s := range c.texts {
			if !strings.Contains(text, s) {
				t.Errorf("%s: no %q in\n%s", name, s, text)
			}
		}
		if c.not != "" && strings.Contains(text, c.not) {
			t.Errorf("%s: %q in\n%s", name, c.not, text)
		}
	}
}
