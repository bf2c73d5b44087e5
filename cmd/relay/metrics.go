package main

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fenceline/fenceline/internal/version"
	"github.com/fenceline/fenceline/relay"
)

// metrics are what "relay run" tells Prometheus. Names and labels are relied on
// by dashboards: add some, change none. No label has values without a bound: no
// keys, no ids, no holders, and of topics the first maxTopics.
type metrics struct {
	registry *prometheus.Registry

	published, bytes, retries *prometheus.CounterVec
	delay, checkpoint         prometheus.Histogram
	outages, holds, refusals  prometheus.Counter
	outage, paused, shards    prometheus.Gauge

	dropped, deleted, rotated, retentionFailures prometheus.Counter
	overdue                                      *prometheus.GaugeVec

	backlog, oldest, held, refused, unowned, instances prometheus.Gauge
	partitions, size, runway, looked                   prometheus.Gauge

	mu     sync.Mutex
	topics map[string]bool
}

const (
	maxTopics  = 200
	otherTopic = "(other)"
)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), topics: map[string]bool{}}
	r := m.registry
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "fenceline", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "fenceline", Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	byTopic := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "fenceline", Name: name, Help: help}, []string{"topic"})
		r.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "fenceline", Name: name, Help: help, Buckets: buckets})
		r.MustRegister(h)
		return h
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fenceline", Name: "build_info", Help: "Which build this is."}, []string{"version", "goversion"})
	info.WithLabelValues(version.Short(), runtime.Version()).Set(1)
	r.MustRegister(info)

	m.published = byTopic("relay_published_records_total", "Records that Kafka has acknowledged to this instance, second copies included.")
	m.bytes = byTopic("relay_published_bytes_total", "An upper estimate of their size.")
	m.retries = byTopic("relay_retries_total", "Attempts that had to be made again. They say nothing against the events.")
	m.delay = histogram("relay_delay_seconds", "From the append of the oldest event of a batch to its acknowledgement, by this machine's clock.",
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800})
	m.checkpoint = histogram("relay_checkpoint_seconds", "What it took to store the cursor.", []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30})
	m.outages = counter("relay_outages_total", "Times that Kafka could not be reached.")
	m.outage = gauge("relay_outage", "1 while Kafka can't be reached, or some partition of a topic.")
	m.holds = counter("relay_holds_total", "Streams that this instance began to hold, since the broker refuses a record of theirs.")
	m.refusals = counter("relay_refusals_total", "Topics or partitions that this instance has set aside.")
	m.paused = gauge("relay_paused", "1 while an operator keeps the relays from publishing.")
	m.shards = gauge("relay_shards", "Shards that this instance works on. The sum over all instances is 64.")
	m.dropped = counter("outbox_dropped_partitions_total", "Partitions of the outbox that this instance has dropped.")
	m.deleted = counter("outbox_deleted_events_total", "Events that this instance has deleted from an outbox that is a plain table.")
	m.rotated = counter("outbox_rotations_total", "Partitions of the outbox that this instance has begun.")
	m.retentionFailures = counter("outbox_retention_failures_total", "Passes of the retention that failed, and were or are tried again.")
	m.overdue = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "fenceline", Name: "outbox_overdue_partitions",
		Help: "Partitions that are old enough and had to be kept, by reason; told by the instance that takes care of it."}, []string{"reason"})
	r.MustRegister(m.overdue)
	for _, reason := range overdueReasons {
		m.overdue.WithLabelValues(reason)
	}
	m.backlog = gauge("outbox_backlog_events", "Committed events that are not published, held streams not counted; counting stops at 100,000.")
	m.oldest = gauge("outbox_oldest_event_age_seconds", "Age of the oldest of them.")
	m.held = gauge("outbox_held_streams", "Streams that are held.")
	m.refused = gauge("outbox_refused_topics", "Topics and partitions that are set aside.")
	m.unowned = gauge("relay_unowned_shards", "Shards that no instance works on.")
	m.instances = gauge("relay_instances", "Instances that are alive.")
	m.partitions = gauge("outbox_partitions", "Partitions of the outbox.")
	m.size = gauge("outbox_size_bytes", "Size of the outbox, with indexes.")
	m.runway = gauge("outbox_runway_events", "Events that can be appended before a new partition is needed.")
	m.looked = gauge("outbox_looked_timestamp_seconds", "When the outbox was last looked at for the figures of this page.")
	return m
}

var overdueReasons = []string{relay.KeptHeld, relay.KeptUnpublished, relay.KeptBusy}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// topic bounds the values of a label.
func (m *metrics) topic(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.topics[name] {
		if len(m.topics) >= maxTopics {
			return otherTopic
		}
		m.topics[name] = true
	}
	return name
}

// seen makes the series of a topic at once, so that zero differs from absent.
func (m *metrics) seen(topics []string) {
	for _, name := range topics {
		label := m.topic(name)
		m.published.WithLabelValues(label)
		m.bytes.WithLabelValues(label)
		m.retries.WithLabelValues(label)
	}
}

// hooks tell the metrics what the relay does.
func (m *metrics) hooks() relay.Hooks {
	return relay.Hooks{
		Published: func(topic string, _, records, bytes int, age time.Duration) {
			topic = m.topic(topic)
			m.published.WithLabelValues(topic).Add(float64(records))
			m.bytes.WithLabelValues(topic).Add(float64(bytes))
			m.delay.Observe(max(0, age.Seconds())) // the two clocks may differ
		},
		Retried:      func(topic string, _, _ int, _ error) { m.retries.WithLabelValues(m.topic(topic)).Inc() },
		OutageBegan:  func(error) { m.outages.Inc(); m.outage.Set(1) },
		OutageEnded:  func(time.Duration) { m.outage.Set(0) },
		Held:         func(relay.HeldStream) { m.holds.Inc() },
		Forked:       func(string, string) { m.refusals.Inc() },
		Checkpointed: func(_ int, took time.Duration) { m.checkpoint.Observe(took.Seconds()) },
		Paused: func(paused bool) {
			m.paused.Set(0)
			if paused {
				m.paused.Set(1)
			}
		},
		Shards:        func(shards []int) { m.shards.Set(float64(len(shards))) },
		Retained:      m.retained,
		RetentionLost: func() { m.tellOverdue(nil) }, // else an alarm here would outlast its cause
	}
}

func (m *metrics) retained(r relay.RetentionReport, err error) {
	m.dropped.Add(float64(len(r.Dropped)))
	m.deleted.Add(float64(r.Deleted))
	if r.Rotated {
		m.rotated.Inc()
	}
	if err != nil {
		m.retentionFailures.Inc()
		return
	}
	m.tellOverdue(r.Overdue)
}

func (m *metrics) tellOverdue(partitions []relay.Partition) {
	kept := map[string]int{}
	for _, p := range partitions {
		kept[p.Kept]++
	}
	for _, reason := range overdueReasons {
		m.overdue.WithLabelValues(reason).Set(float64(kept[reason]))
	}
}

// look takes over what was read from the database.
func (m *metrics) look(st relay.Status, o relay.Outbox) {
	m.backlog.Set(float64(st.Backlog))
	m.oldest.Set(st.Oldest.Seconds())
	m.held.Set(float64(len(st.Held)))
	m.refused.Set(float64(len(st.Forks)))
	m.unowned.Set(float64(len(st.Unowned)))
	m.instances.Set(float64(len(st.Instances)))
	m.partitions.Set(float64(len(o.Partitions)))
	m.size.Set(float64(o.Bytes))
	m.runway.Set(float64(o.Runway))
	m.looked.Set(float64(st.Now.UnixMicro()) / 1e6)
}
