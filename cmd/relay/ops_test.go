package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/relay"
)

var servedAt = regexp.MustCompile(`serving health and metrics.*address=(\S+)`)

// serving waits until a relay serves, and gives its address.
func serving(t *testing.T, p *cmdtest.Process) (addr string) {
	t.Helper()
	p.WaitFor(t, "serving health and metrics", func() bool {
		m := servedAt.FindStringSubmatch(p.Stderr())
		if m == nil {
			return false
		}
		addr = m[1]
		return true
	})
	return addr
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // a test's
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestARunningRelayTellsHowItIsAndIsPausedAndResumed(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 1)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay"), "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_TOPICS=" + topic, "FENCELINE_HTTP=127.0.0.1:0", "FENCELINE_METRICS_EVERY=1s"}
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	operator := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	p := cmdtest.Start(t, env, "relay", "run")
	addr := serving(t, p)
	probe := func(what string) cmdtest.Result {
		return cmdtest.Run(t, cmdtest.Env{"FENCELINE_HTTP=" + addr}, "relay", "probe", what)
	}
	p.WaitFor(t, "being ready", func() bool { return probe("readyz").Code == 0 })
	want(t, probe("livez"), 0, "ok")

	want(t, cmdtest.Run(t, monitor, "relay", "pause"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, operator, "relay", "pause", "-who", ""), 2, "-who is missing")
	want(t, cmdtest.Run(t, operator, "relay", "pause", "-who", strings.Repeat("a", 256)), 2, "-who: ", "want 1 to 255 bytes")
	want(t, cmdtest.Run(t, operator, "relay", "pause", "-reason", strings.Repeat("a", 1025)), 1, "the reason has 1025 bytes: use at most 1024")
	want(t, cmdtest.Run(t, operator, "relay", "pause", "-who", "alice", "-reason", "a broker upgrade"), 0, "paused: nothing is published")
	want(t, cmdtest.Run(t, operator, "relay", "pause"), 0, "paused before")
	p.WaitFor(t, "the pause", func() bool { return p.Logged("relays are paused") })
	want(t, probe("readyz"), 0, "ok", `note: the relays are paused by "alice"`, "a broker upgrade")
	p.WaitFor(t, "the metric of the pause", func() bool { return strings.Contains(get(t, "http://"+addr+"/metrics"), "fenceline_relay_paused 1") })
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", `{"n":1}`)
	st := readStatus(t, monitor)
	if st.Pause == nil || st.Pause.Who != "alice" || st.Backlog.Events != 1 || len(st.Outbox.Partitions) != 1 || st.Outbox.Runway == 0 || !st.History.Same || len(st.Instances) != 1 {
		t.Errorf("status: %+v", st)
	}
	p.WaitFor(t, "all shards", func() bool { return strings.Contains(get(t, "http://"+addr+"/metrics"), "fenceline_relay_shards 64") })
	want(t, cmdtest.Run(t, monitor, "relay", "status"), 0, `paused   by "alice"`, "a broker upgrade", "outbox_0", "with 64 shards", `"relay resume" ends it`)
	if n := len(kafkatest.Records(t, broker, topic)); n != 0 {
		t.Errorf("%d records were published while paused", n)
	}
	want(t, cmdtest.Run(t, operator, "relay", "resume", "-json"), 0, `"changed": true`)
	p.WaitFor(t, "the record", func() bool { return len(kafkatest.Records(t, broker, topic)) == 1 })
	p.WaitFor(t, "the metrics of the backlog", func() bool {
		m := get(t, "http://"+addr+"/metrics")
		return strings.Contains(m, `fenceline_relay_published_records_total{topic="`+topic+`"} 1`) && strings.Contains(m, "fenceline_outbox_backlog_events 0") && strings.Contains(m, "fenceline_relay_shards 64")
	})
	want(t, p.Terminate(t), 0)
	want(t, probe("livez"), 1, "nothing answers")
	want(t, cmdtest.Run(t, nil, "relay", "probe", "-help"), 0, "relay probe livez|readyz")
	want(t, cmdtest.Run(t, nil, "relay", "probe", "livez", "-http", "8081"), 2, "host:port")
}

func TestAPortThatIsTakenKeepsNobodyFromPublishing(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	topic := kafkatest.Topic(t, broker, 1)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn, "FENCELINE_KAFKA_BROKERS=" + broker, "FENCELINE_HTTP=" + nobody(t)}
	first := cmdtest.Start(t, env, "relay", "run")
	serving(t, first)
	second := cmdtest.Start(t, env, "relay", "run")
	second.WaitFor(t, "its error", func() bool { return second.Logged("cannot serve health and metrics") })
	want(t, first.Terminate(t), 0)
	cmdtest.Commit(t, dsn, topic, "ci", "quake.reported", `{}`)
	second.WaitFor(t, "the record", func() bool { return len(kafkatest.Records(t, broker, topic)) == 1 })
	want(t, second.Terminate(t), 0, "is taken by another program", "choose another address with -http")
}

func TestTheRetentionCommandMakesOnePass(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", `{}`)
	cmdtest.Exec(t, dsn, "update fenceline.outbox set created_at = created_at - interval '30 days'")
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, env, "relay", "retention"), 0, "the next partition has begun", "removed   nothing")
	want(t, cmdtest.Run(t, env, "relay", "retention"), 0, "kept      outbox_0", "though it is old enough", `"relay status" says what waits`)
	want(t, cmdtest.Run(t, env, "relay", "retention", "-json"), 0, `"reason": "unpublished"`, `"dropped_partitions": []`)
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	want(t, cmdtest.Run(t, monitor, "relay", "retention"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, env, "relay", "retention", "-retention", "0s"), 2, "-retention")
}

func TestTheDoctorFindsWhatIsWrongAndSaysWhatToDo(t *testing.T) {
	dsn, broker := cmdtest.Migrated(t), kafkatest.Broker(t)
	good, compacted, missing := kafkatest.Topic(t, broker, 1), kafkatest.Topic(t, broker, 1, "cleanup.policy=compact"), kafkatest.Name(t)
	cmdtest.Commit(t, dsn, good, "ci", "quake.reported", `{}`)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "relay"), "FENCELINE_KAFKA_BROKERS=" + broker}
	want(t, cmdtest.Run(t, env, "relay", "doctor"), 0,
		"ok        database: PostgreSQL", "ok        schema", "ok        settings", "ok        history", "ok        rights", "ok        connection: direct", "ok        clock", "ok        outbox", "ok        transactions", "ok        pause", "ok        topic "+good)
	want(t, cmdtest.Run(t, env, "relay", "doctor", "-topics", missing+","+compacted), 1, "problem   topic "+missing, "problem   topic "+compacted, "cleanup.policy", "relay doctor: 2 problems")
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	want(t, cmdtest.Run(t, monitor, "relay", "doctor"), 0, "warning   rights", "warning   kafka: not looked at")
	cmdtest.Exec(t, dsn, "alter sequence fenceline.outbox_pos cache 20", "update fenceline.history set timeline = '00000009'", "select fenceline.relay_set_pause(true, 'alice', 'why not')")
	r := cmdtest.Run(t, monitor, "relay", "doctor", "-json")
	want(t, r, 1, `"problems": 2`, "cache of sequence fenceline.outbox_pos is 20", "alter sequence fenceline.outbox_pos cache 1", "relay history bump", "paused by", "alice")
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + cmdtest.Database(t)}, "relay", "doctor"), 1, "problem   schema", "relay migrate up")
	// A pause that nobody gave a reason for, and a login without a role.
	bare := cmdtest.Migrated(t)
	cmdtest.Exec(t, bare, "select fenceline.relay_set_pause(true, 'alice', '')")
	for _, command := range []string{"status", "doctor"} {
		r := cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + bare}, "relay", command)
		want(t, r, 0, "alice")
		if strings.Contains(r.Stdout, ": \n") {
			t.Errorf("a line ends with nothing behind its colon:\n%s", r.Stdout)
		}
	}
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, bare)}, "relay", "doctor"), 1, "problem   schema", `to look, grant "fenceline_monitor" to `)
	env[1] = "FENCELINE_KAFKA_BROKERS=" + nobody(t)
	want(t, cmdtest.Run(t, env, "relay", "doctor"), 1, "problem   kafka: no Kafka broker can be reached")
}

// A transaction that has written to the outbox and stays open is named.
func TestStatusNamesTheTransactionThatStaysOpen(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := newStatusReport("fenceline", relay.Status{Now: now})
	b := relay.Blocker{PID: 4711, User: "shop", Application: "billing", State: "idle in transaction", Open: 42 * time.Minute}
	r.Blockers = append(r.Blockers, blocker{Text: b.String()}, blocker{Text: relay.Blocker{GID: "x7", User: "shop", Open: time.Hour}.String()}, blocker{Text: relay.Blocker{PID: 12, User: "shop"}.String()})
	text := r.text()
	for _, s := range []string{"open     pid 4711 of shop (billing, idle in transaction) has written to the outbox and has been open for 42m0s", `a prepared transaction "x7" of shop has been waiting for 1h0m0s`, "pid 12 of shop has written to the outbox and is open (pg_read_all_stats"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in\n%s", s, text)
		}
	}
}

func TestMetricsKeepTheirNamesAndTheirLabelsAreBounded(t *testing.T) {
	m := newMetrics()
	m.seen([]string{"quakes"})
	h := m.hooks()
	h.Published("quakes", 0, 3, 300, -time.Second)
	h.Retried("quakes", 0, 1, errors.New("away"))
	h.OutageBegan(nil)
	h.Held(relay.HeldStream{})
	h.Forked("t", "gone")
	h.Checkpointed(1, time.Millisecond)
	h.Shards([]int{1, 2})
	h.Paused(true)
	h.Retained(relay.RetentionReport{Rotated: true, Dropped: []string{"a"}, Deleted: 2, Overdue: []relay.Partition{{Kept: relay.KeptHeld}}}, nil)
	h.Retained(relay.RetentionReport{}, errors.New("failed"))
	m.look(relay.Status{Backlog: 7, Oldest: time.Minute, Unowned: []int{1}}, relay.Outbox{Bytes: 10, Runway: 99, Partitions: make([]relay.Partition, 2)})
	for i := range 2 * maxTopics {
		h.Published(strings.Repeat("x", i+1), 0, 1, 1, 0)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > maxTopics+1 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "fenceline_") {
			x := f.GetMetric()[0]
			got[f.GetName()] = x.GetCounter().GetValue() + x.GetGauge().GetValue() + x.GetHistogram().GetSampleSum()
		}
	}
	for name, value := range map[string]float64{
		"fenceline_build_info": 1, "fenceline_relay_outages_total": 1, "fenceline_relay_outage": 1, "fenceline_relay_holds_total": 1, "fenceline_relay_refusals_total": 1,
		"fenceline_relay_paused": 1, "fenceline_relay_shards": 2, "fenceline_relay_checkpoint_seconds": .001, "fenceline_relay_delay_seconds": 0,
		"fenceline_outbox_dropped_partitions_total": 1, "fenceline_outbox_deleted_events_total": 2, "fenceline_outbox_rotations_total": 1, "fenceline_outbox_retention_failures_total": 1,
		"fenceline_outbox_backlog_events": 7, "fenceline_outbox_oldest_event_age_seconds": 60, "fenceline_outbox_held_streams": 0, "fenceline_outbox_refused_topics": 0,
		"fenceline_relay_unowned_shards": 1, "fenceline_relay_instances": 0, "fenceline_outbox_partitions": 2, "fenceline_outbox_size_bytes": 10, "fenceline_outbox_runway_events": 99,
	} {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s is %v, want %v", name, v, value)
		}
	}
	page := scrape(t, m)
	for _, s := range []string{`fenceline_relay_published_records_total{topic="quakes"} 3`, `fenceline_relay_retries_total{topic="quakes"} 1`, `fenceline_outbox_overdue_partitions{reason="held"} 1`, `fenceline_outbox_overdue_partitions{reason="busy"} 0`, `{topic="(other)"}`} {
		if !strings.Contains(page, s) {
			t.Errorf("no %s", s)
		}
	}
}

// scrape is the page that a scrape gets.
func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	server := httptest.NewServer(m.handler())
	defer server.Close()
	return get(t, server.URL)
}

func TestWhatIsOverdueIsNotToldAnyMoreByAnInstanceThatNoLongerLooks(t *testing.T) {
	m := newMetrics()
	h := m.hooks()
	overdue := func() (all float64) {
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "fenceline_outbox_overdue_partitions" {
				continue
			}
			for _, reason := range f.GetMetric() {
				all += reason.GetGauge().GetValue()
			}
		}
		return all
	}
	h.Retained(relay.RetentionReport{Overdue: []relay.Partition{{Kept: relay.KeptHeld}}}, nil)
	if overdue() != 1 {
		t.Errorf("%v partitions are overdue, want 1", overdue())
	}
	h.RetentionLost()
	if overdue() != 0 {
		t.Errorf("%v partitions are overdue by the word of an instance that doesn't look", overdue())
	}
}
