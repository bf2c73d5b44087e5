package main

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fenceline/fenceline/consumer"
)

// metrics turns what the consumer tells into numbers, and remembers which
// partitions wait. Its labels are bounded: no key, no id, no text.
type metrics struct {
	records    *prometheus.CounterVec
	resumed    prometheus.Counter
	failures   *prometheus.CounterVec
	alarms     *prometheus.CounterVec
	lag        *prometheus.GaugeVec
	took       prometheus.Histogram
	registry   *prometheus.Registry
	mu         sync.Mutex
	partitions map[consumer.Partition]consumer.PartitionChange
	assigned   bool // there was a generation
}

var (
	_ consumer.Observer          = (*metrics)(nil)
	_ consumer.PartitionObserver = (*metrics)(nil)
)

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "fenceline", Subsystem: "consumer", Name: name, Help: help}
	}
	m := &metrics{
		records:    prometheus.NewCounterVec(prometheus.CounterOpts(opts("records_total", "Records that were decided, by what became of them.")), []string{"outcome"}),
		resumed:    prometheus.NewCounter(prometheus.CounterOpts(opts("resumed_total", "Records that had waited in the park and went on."))),
		failures:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("failures_total", "Tries that failed, by whether the reason passes.")), []string{"passing"}),
		alarms:     prometheus.NewCounterVec(prometheus.CounterOpts(opts("alarms_total", "Alarms, by what they are about.")), []string{"kind"}),
		lag:        prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("lag_records", "Offsets between what was applied and the end of the log.")), []string{"topic", "partition"}),
		registry:   prometheus.NewRegistry(),
		partitions: make(map[consumer.Partition]consumer.PartitionChange),
	}
	m.took = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "fenceline", Subsystem: "consumer", Name: "transaction_seconds",
		Help: "Time from BEGIN to the answer to COMMIT.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)})
	m.registry.MustRegister(m.records, m.resumed, m.failures, m.alarms, m.lag, m.took)
	return m
}

// Committed implements consumer.Observer.
func (m *metrics) Committed(c consumer.Committed) {
	for _, r := range c.Results {
		m.records.WithLabelValues(string(r.Outcome)).Inc()
		if r.Resumed {
			m.resumed.Inc()
		}
	}
	if c.Partition.Topic != "" {
		m.lag.WithLabelValues(c.Partition.Topic, strconv.Itoa(c.Partition.ID)).Set(float64(c.HighWatermark - c.Next))
	}
	m.took.Observe(c.Took.Seconds())
}

// Failing implements consumer.Observer.
func (m *metrics) Failing(f consumer.Failure) {
	m.failures.WithLabelValues(strconv.FormatBool(f.Passing)).Inc()
}

// Alarm implements consumer.Observer.
func (m *metrics) Alarm(a consumer.Alarm) { m.alarms.WithLabelValues(string(a.Kind)).Inc() }

// PartitionChanged implements consumer.PartitionObserver.
func (m *metrics) PartitionChanged(c consumer.PartitionChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assigned = true
	if c.State == consumer.Released {
		// Its lag is another member's now.
		delete(m.partitions, c.Partition)
		m.lag.DeleteLabelValues(c.Partition.Topic, strconv.Itoa(c.Partition.ID))
		return
	}
	m.partitions[c.Partition] = c
}

// waiting says which partitions of this process don't get on, and why. ready is
// false until it has had some: a member of a group that has more members than
// partitions is ready when it is needed, which it isn't yet.
func (m *metrics) waiting() (ready bool, why map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	why = make(map[string]string)
	for p, c := range m.partitions {
		if c.State == consumer.Waiting {
			why[p.String()] = c.Reason.Error()
		}
	}
	return m.assigned && len(why) == 0, why
}
