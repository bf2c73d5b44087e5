package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// childEnv makes a process of this test binary a relay, and nothing else: "name
// broker dsn".
const childEnv = "FENCELINE_TEST_RELAY_CHILD"

func init() {
	if job := os.Getenv(childEnv); job != "" {
		os.Exit(child(job))
	}
}

func child(job string) int {
	parts := strings.SplitN(job, " ", 3)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready") // before that, SIGTERM is no request but the end
	pool, err := pgxpool.New(ctx, parts[2])
	if err != nil {
		slog.Error("no pool", "error", err)
		return 1
	}
	defer pool.Close()
	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{parts[1]}, Timeout: 2 * time.Second})
	if err != nil {
		slog.Error("no publisher", "error", err)
		return 1
	}
	defer func() { _ = publisher.Close() }()
	cfg := relay.Quick()
	cfg.Name = parts[0]
	cfg.PageSize, cfg.BatchRecords, cfg.CheckpointInterval = 200, 50, 50*time.Millisecond
	if err := relay.Run(ctx, pool, publisher, cfg); err != nil {
		slog.Error("the relay has ended", "error", err)
		return 1
	}
	return 0
}

// start starts a relay as a process of its own, and returns when it can be asked to
// stop.
func start(t *testing.T, name, broker, dsn string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", childEnv, name, broker, dsn))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("a relay doesn't start: %v", err)
	}
	return cmd
}

// Four relays as processes, 16 writers, a transaction that is always open, a
// broker that loses answers and goes away. The relays are killed, paused for
// longer than their leases last, stopped and started again. At the end every
// committed event is in Kafka, and of each stream first copies are in order,
// without holes, and their tokens never go back; and the comparison of all parts
// finds no disagreement. FENCELINE_TORTURE sets how long it goes on.
func TestRelaysThatAreKilledPausedAndRestartedLoseAndInvertNothing(t *testing.T) {
	length := 6 * time.Second
	if os.Getenv("FENCELINE_LONG") != "" {
		length = 2 * time.Minute
	}
	if v := os.Getenv("FENCELINE_TORTURE"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 40) // so that batches share requests
	proxy := kafkatest.NewProxy(t, addr)
	pool := pgmigrated.Pool(t)
	dsn := pool.Config().ConnString()

	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	if _, err := open.Exec(t.Context(), "select pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	relays := make([]*exec.Cmd, 4)
	paused := map[int]time.Time{} // until when
	for i := range relays {
		relays[i] = start(t, fmt.Sprint("relay-", i), proxy.Addr(), dsn)
	}
	t.Cleanup(func() {
		for _, cmd := range relays {
			if cmd.ProcessState == nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		}
	})
	end := relay.Writing(t, pool, topic, 16, 20*time.Millisecond)

	var kills, pauses, stops, faults int
	for deadline := time.Now().Add(length); time.Now().Before(deadline); {
		time.Sleep(time.Duration(100+r.IntN(300)) * time.Millisecond) // the torturer's rhythm
		for i, until := range paused {
			if time.Now().After(until) {
				_ = relays[i].Process.Signal(syscall.SIGCONT)
				delete(paused, i)
			}
		}
		i := r.IntN(len(relays))
		if _, is := paused[i]; is {
			continue
		}
		switch r.IntN(6) {
		case 0:
			kills++
			_ = relays[i].Process.Kill()
			_ = relays[i].Wait()
			relays[i] = start(t, fmt.Sprint("relay-", i), proxy.Addr(), dsn)
		case 1, 2:
			pauses++
			_ = relays[i].Process.Signal(syscall.SIGSTOP)
			paused[i] = time.Now().Add(time.Duration(500+r.IntN(3000)) * time.Millisecond)
		case 3:
			stops++
			_ = relays[i].Process.Signal(syscall.SIGTERM)
			if err := relays[i].Wait(); err != nil {
				t.Errorf("a clean stop of relay %d: %v", i, err)
			}
			relays[i] = start(t, fmt.Sprint("relay-", i), proxy.Addr(), dsn)
		case 4:
			faults++
			proxy.Inject(&kafkatest.Fault{When: kafkatest.ToTopic(topic), Do: kafkatest.LoseAnswer, Count: 1 + r.IntN(3)})
		case 5:
			faults++
			proxy.Cut()
		}
	}
	for i := range paused {
		_ = relays[i].Process.Signal(syscall.SIGCONT)
	}
	total := end()
	drained(t, pool)
	for i, cmd := range relays {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("a clean stop of relay %d: %v", i, err)
		}
	}
	_, parsed := read(t, addr, topic)
	events, again := inOrder(t, parsed)
	tokens := map[string]int64{}
	for _, rec := range parsed {
		if rec.Token < tokens[rec.Key] {
			t.Errorf("%s: the token goes back from %d to %d", rec.Key, tokens[rec.Key], rec.Token)
		}
		tokens[rec.Key] = max(tokens[rec.Key], rec.Token)
	}
	if events != total {
		t.Errorf("%d of %d events are in Kafka", events, total)
	}
	verified(t, addr, pool, total)
	t.Logf("%d events, %d copies, %d kills, %d pauses, %d stops, %d faults of the broker", total, again, kills, pauses, stops, faults)
}

// drained waits until the relays have published all that is committed, for as long
// as they get on with it.
func drained(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	least, moved := int64(math.MaxInt64), time.Now()
	for {
		st, err := relay.ReadStatus(t.Context(), pool, "")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case st.Backlog == 0:
			return
		case st.Backlog < least || st.More: // counting stops at 100,000
			least, moved = st.Backlog, time.Now()
		case time.Since(moved) > time.Minute:
			t.Fatalf("%d events wait, and nobody publishes them: %+v", st.Backlog, st)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
