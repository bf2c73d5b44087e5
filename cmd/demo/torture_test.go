package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/quakes"
)

func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(childMain())
	}
	os.Exit(kafkatest.Main(m))
}

// Two workers, the relay and the consumer are killed with SIGKILL again and
// again, each at moments of its own, while the story's work goes on. Whatever
// they were doing then, the facts must be those of the input in the end.
func TestNothingIsLostWhenEveryProcessIsKilledAtRandom(t *testing.T) {
	kills, repeat := 5, 3
	if os.Getenv("FENCELINE_LONG") != "" {
		kills, repeat = 20, 30
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	reports, input := manyWeeks(t, repeat)

	g, err := newStage(ctx, settings{Brokers: []string{kafkatest.Broker(t)}}, newPrinter(t.Output()))
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(g.dir, "*.log"))
			for _, l := range logs[max(0, len(logs)-8):] {
				t.Logf("%s: %s", filepath.Base(l), tail(l))
			}
		}
		if err := g.close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &story{stage: g, out: g.out, input: input, reports: reports, counts: totals{}}
	perNet := map[string]bool{}
	for _, r := range reports {
		if !perNet[r.Net] {
			perNet[r.Net] = true
			s.networks = append(s.networks, r.Net)
		}
	}
	if err := s.begin(ctx); err != nil {
		t.Fatal(err)
	}

	var actors sync.WaitGroup
	var killed [4]atomic.Int32
	failed := make(chan error, 8)
	for i, who := range []struct {
		now              **child
		role, name, kind string
	}{
		{&s.relay, "relay", "relay", "relay"}, {&s.consumer, "consumer", "quake-report", "consumer"},
		{&s.a, "worker", "worker-a", "producer"}, {&s.b, "worker", "worker-b", "producer"},
	} {
		actors.Go(func() {
			for n := range kills {
				if who.role == "worker" {
					if _, err := (*who.now).begin("work", workArgs{s.networks, len(reports)}); err != nil {
						failed <- err
						return
					}
				}
				// Once it is at work, at a random moment: that is what is tried.
				for waited := 0; who.role != "worker" && len((*who.now).counted()) == 0 && waited < 300; waited++ {
					time.Sleep(50 * time.Millisecond)
				}
				select {
				case <-time.After(rand.N(800 * time.Millisecond)):
				case <-ctx.Done():
					return
				}
				(*who.now).kill()
				killed[i].Add(1)
				c, err := g.cast.start(ctx, g.child(who.role, fmt.Sprintf("%s-%d", who.name, n+2), who.kind, input))
				if err != nil {
					failed <- fmt.Errorf("start %s again: %w", who.name, err)
					return
				}
				*who.now = c
			}
		})
	}
	actors.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	for i := range killed {
		if killed[i].Load() != int32(kills) {
			t.Fatalf("process %d was killed %d times, want %d", i, killed[i].Load(), kills)
		}
	}
	wait, err := s.work(ctx, len(reports))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	f, err := s.check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills of each process: %s", kills, f.line())
	for _, d := range f.differ {
		t.Error(d)
	}
	if f.lost != 0 || f.committed != len(reports) {
		t.Errorf("%s, want committed=%d and lost=0", f.line(), len(reports))
	}
}

// manyWeeks repeats the week with new ids, and writes it to a file for the
// children.
func manyWeeks(t *testing.T, n int) ([]quakes.Report, string) {
	t.Helper()
	week, err := quakes.All()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	for i := range n {
		for _, r := range week {
			file.Write(bytes.Replace(r.Line, []byte(`"id":"`), fmt.Appendf(nil, `"id":"w%d-`, i), 1))
			file.WriteByte('\n')
		}
	}
	path := filepath.Join(t.TempDir(), "weeks.ndjson")
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	reports, err := quakes.Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	return reports, path
}
