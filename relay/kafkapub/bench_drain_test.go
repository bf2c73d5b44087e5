package kafkapub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

const (
	benchPartitions = 12
	benchKeys       = 1000
)

// benchJob is what a process of its own is told to do, so that the arms share
// neither a heap nor a garbage collector, and the memory of each can be read.
type benchJob struct {
	Arm     string // "raw" or "relay"
	DSN     string
	Broker  string
	Topic   string
	Events  int
	Profile string // a file for a CPU profile, if any
}

// benchResult is what it answers.
type benchResult struct {
	Seconds float64
	CPU     float64 // seconds of this process
	PeakKB  int     // its largest resident set
}

const envBenchJob = "FENCELINE_BENCH_JOB"

func benchNumber(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// BenchmarkDrain compares the relay's way from the outbox to Kafka with what
// kafka-go can do at best with the same records: they lie in memory, 500 to a
// request, one request in flight for each partition. Run it by make bench-relay.
func BenchmarkDrain(b *testing.B) {
	if !kafkatest.Real(b) {
		b.Fatal("it says something on Apache Kafka and a PostgreSQL that keeps what it acknowledges only: make bench-relay")
	}
	events, rounds := benchNumber("FENCELINE_BENCH_EVENTS", 200_000), benchNumber("FENCELINE_BENCH_ROUNDS", 5)
	for _, size := range []int{300, 1024} {
		b.Run(fmt.Sprintf("payload=%d", size), func(b *testing.B) {
			broker := kafkatest.Broker(b)
			topic := kafkatest.Topic(b, broker, benchPartitions)
			dsn := pgmigrated.Migrated(b)
			fillOutbox(b, dsn, topic, events, size)
			var ratios []float64
			var raws, relays []benchResult
			for round := range rounds + 1 {
				var pair [2]benchResult
				for i, arm := range []string{"raw", "relay"} {
					emptyTopic(b, broker, topic)
					forgetCursors(b, dsn)
					job := benchJob{Arm: arm, DSN: dsn, Broker: broker, Topic: topic, Events: events}
					if dir := os.Getenv("FENCELINE_BENCH_PROFILE"); dir != "" {
						job.Profile = filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", arm, size))
					}
					pair[i] = runBenchJob(b, job)
				}
				if round == 0 {
					continue // the first warms up files, caches and the broker's compiler
				}
				raws, relays = append(raws, pair[0]), append(relays, pair[1])
				ratios = append(ratios, pair[0].Seconds/pair[1].Seconds)
			}
			report := func(name string, rs []benchResult) {
				rate := middle(rs, func(r benchResult) float64 { return float64(events) / r.Seconds })
				cpu := middle(rs, func(r benchResult) float64 { return r.CPU / float64(events) * 1e6 })
				b.Logf("%-6s %8.0f events/s, %.2f µs of the client's CPU an event, %d MB resident at most", name, rate, cpu, int(middle(rs, func(r benchResult) float64 { return float64(r.PeakKB) }))/1024)
			}
			report("raw", raws)
			report("relay", relays)
			slices.Sort(ratios)
			b.Logf("ratio  %.2f (%.2f–%.2f) in %d rounds", ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], rounds)
			b.ReportMetric(ratios[len(ratios)/2], "relay/raw")
		})
	}
}

func middle(rs []benchResult, f func(benchResult) float64) float64 {
	var v []float64
	for _, r := range rs {
		v = append(v, f(r))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// fillOutbox writes the rows that so many commits would have left, but in one
// statement: what is measured begins behind them.
func fillOutbox(t testing.TB, dsn, topic string, events, size int) {
	t.Helper()
	pool := pgtest.Connect(t, dsn)
	_, err := pool.Exec(t.Context(), `
		insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, subject, contenttype, history)
		select gen_random_uuid(), 'order', k.key, 'order.updated', convert_to(rpad('{"order":' || n || ',"state":"', $3, md5(n::text) || md5((n + 1)::text)), 'UTF8'),
			$1, k.key, fenceline._shard(k.key), 1700000000000000, 1, 1 + n / $4, '/orders', 'order ' || n, 'application/json', case when n < $4 then 1600000000000000 end
		from generate_series(0, $2 - 1) n cross join lateral (select 'customer-' || n % $4 as key) k order by n`,
		topic, events, size, benchKeys)
	if err == nil {
		_, err = pool.Exec(t.Context(), "vacuum analyze fenceline.outbox")
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), "checkpoint")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forgetCursors makes everything in the outbox a backlog again.
func forgetCursors(t testing.TB, dsn string) {
	t.Helper()
	pool := pgtest.Connect(t, dsn)
	if _, err := pool.Exec(t.Context(), "truncate fenceline.relay_checkpoint"); err != nil {
		t.Fatal(err)
	}
	pool.Close()
}

// emptyTopic gives the disk back what the last round has used.
func emptyTopic(t testing.TB, broker, topic string) {
	t.Helper()
	admin := kafkatest.Admin(t, broker)
	ends, err := admin.ListEndOffsets(t.Context(), topic)
	if err == nil {
		_, err = admin.DeleteRecords(t.Context(), ends.Offsets())
	}
	if err != nil {
		t.Fatal(err)
	}
	admin.Close()
}

// runBenchJob runs this test binary again, as the process that does the job.
func runBenchJob(t testing.TB, job benchJob) benchResult {
	t.Helper()
	text, _ := json.Marshal(job)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkDrainJob$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), envBenchJob+"="+string(text))
	out, err := cmd.CombinedOutput()
	_, answer, found := strings.Cut(string(out), "RESULT ")
	var r benchResult
	if err == nil && found {
		answer, _, _ = strings.Cut(answer, "\n")
		err = json.Unmarshal([]byte(answer), &r)
	}
	if err != nil || !found {
		t.Fatalf("the process for %s: %v\n%s", job.Arm, err, out)
	}
	return r
}

// BenchmarkDrainJob is the other process; by itself it does nothing.
func BenchmarkDrainJob(b *testing.B) {
	text := os.Getenv(envBenchJob)
	if text == "" {
		return
	}
	var job benchJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		b.Fatal(err)
	}
	arm := map[string]func(*testing.B, benchJob) (time.Duration, time.Duration){"raw": drainRaw, "relay": drainRelay}[job.Arm]
	took, cpu := arm(b, job)
	answer, _ := json.Marshal(benchResult{took.Seconds(), cpu.Seconds(), peakKB(b)})
	fmt.Printf("\nRESULT %s\n", answer)
}

func usedCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func peakKB(t testing.TB) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kb int
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}

// drainRelay lets a relay publish everything. The time runs from when it is
// the active instance to the last acknowledgement.
func drainRelay(b *testing.B, job benchJob) (took, cpu time.Duration) {
	pool, err := pgxpool.New(b.Context(), job.DSN)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	pub, err := kafkapub.New(kafkapub.Config{Brokers: []string{job.Broker}})
	if err != nil {
		b.Fatal(err)
	}
	defer pub.Close() //nolint:errcheck // at the end of the process
	var begin time.Time
	var before time.Duration
	var published atomic.Int64
	done := make(chan struct{})
	cfg := relay.Config{Logger: slog.New(slog.DiscardHandler)}
	cfg.Hooks.LeaseGained = func(int64, int64) {
		if begin.IsZero() {
			begin, before = time.Now(), usedCPU()
			if job.Profile != "" {
				profile(b, job.Profile)
			}
		}
	}
	cfg.Hooks.Published = func(_ string, _, records, _ int, _ time.Duration) {
		if published.Add(int64(records)) == int64(job.Events) {
			took, cpu = time.Since(begin), usedCPU()-before
			close(done)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx, pool, pub, cfg) }()
	select {
	case <-done:
	case err := <-ended:
		b.Fatalf("the relay has ended: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return took, cpu
}

// drainRaw sends the same records from memory.
func drainRaw(b *testing.B, job benchJob) (took, cpu time.Duration) {
	batches := rawBatches(b, job)
	transport := &kafka.Transport{MetadataTopics: []string{job.Topic}}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(job.Broker), Transport: transport, Timeout: time.Minute}
	begin, before := time.Now(), usedCPU()
	var lanes sync.WaitGroup
	for partition := range batches {
		lanes.Go(func() {
			for _, records := range batches[partition] {
				if err := sendRaw(b.Context(), client, job.Topic, partition, records); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	lanes.Wait()
	return time.Since(begin), usedCPU() - before
}

// sendRaw tries again while the cluster is in a passing state, as a program
// would that uses the client: a broker that is kept from the processor for a
// second is taken for dead by its own controller.
func sendRaw(ctx context.Context, client *kafka.Client, topic string, partition int, records []kafka.Record) error {
	for {
		resp, err := client.Produce(ctx, &kafka.ProduceRequest{
			Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
		})
		if err == nil {
			err = resp.Error
		}
		if !errors.Is(err, kafka.NotLeaderForPartition) && !errors.Is(err, kafka.LeaderNotAvailable) {
			return err
		}
		for i := range records { // they have been read
			records[i].Key = rewound(records[i].Key)
			records[i].Value = rewound(records[i].Value)
		}
		time.Sleep(20 * time.Millisecond) // backoff
	}
}

func rewound(b kafka.Bytes) kafka.Bytes {
	if s, ok := b.(io.Seeker); ok {
		_, _ = s.Seek(0, io.SeekStart) // in memory
	}
	return b
}

// rawBatches reads the outbox into memory.
func rawBatches(b *testing.B, job benchJob) [][][]kafka.Record {
	pool, err := pgxpool.New(b.Context(), job.DSN)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	rows, err := pool.Query(b.Context(), `select id, type, payload, topic, key, epoch, token, seq, source, subject, contenttype, coalesce(history, 0), created_at from fenceline.outbox order by pos`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	batches := make([][][]kafka.Record, benchPartitions)
	for rows.Next() {
		var r outbox.Record
		if err := rows.Scan((*[16]byte)(&r.ID), &r.Type, &r.Payload, &r.Topic, &r.Key, &r.Epoch, &r.Token, &r.Seq, &r.Source, &r.Subject, &r.ContentType, &r.History, &r.CreatedAt); err != nil {
			b.Fatal(err)
		}
		r.Stream, r.Kind = r.Topic, outbox.KindData
		record := kafka.Record{Time: r.CreatedAt, Key: kafka.NewBytes([]byte(r.Key)), Value: kafka.NewBytes(r.Payload)}
		for _, h := range outbox.AppendWireHeaders(nil, &r) {
			record.Headers = append(record.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		p := outbox.Partition([]byte(r.Key), benchPartitions)
		if n := len(batches[p]); n == 0 || len(batches[p][n-1]) == 500 {
			batches[p] = append(batches[p], nil)
		}
		last := &batches[p][len(batches[p])-1]
		*last = append(*last, record)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return batches
}
