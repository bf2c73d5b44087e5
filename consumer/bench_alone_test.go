package consumer_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/fenceline/fenceline/consumer"
)

// What an event costs that comes alone, through Run: a transaction for each, and
// nothing that events of a batch share. It prints the lower quartile of many short
// slices, of the processor time that the server and this process take for an event:
// other work on the machine adds to some slices, and takes nothing from any.
func BenchmarkAnEventThatComesAlone(b *testing.B) {
	tr := newTrack(b)
	log := newMemory("t")
	committed := make(commits, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- consumer.Run(b.Context(), tr.pool, log.source(), consumer.Config{
			Name: "bench", Logger: slog.New(slog.DiscardHandler), Observer: committed,
		}, consumer.HandlerFunc(handleBench))
	}()
	const keys = 1000
	at := 0
	next := func() {
		key := fmt.Sprint("k", at%keys)
		at++
		tr.seqs[key]++
		log.publish(event("t", key, tr.seqs[key]))
		select {
		case <-committed:
		case err := <-ended:
			b.Fatal("Run has ended: ", err)
		}
	}
	for range 2 * keys { // every key has a guard
		next()
	}
	tr.exec("vacuum analyze fenceline.guard")
	var servers, clients, both []float64
	for range 8 * rounds() {
		server, client, events := tr.serverCPU(), clientCPU(), 0
		for end := time.Now().Add(benchSlice / 2); time.Now().Before(end); events++ {
			next()
		}
		micros := func(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(events) }
		s, c := micros(tr.serverCPU()-server), micros(clientCPU()-client)
		servers, clients, both = append(servers, s), append(clients, c), append(both, s+c)
	}
	quartile := func(v []float64) float64 { slices.Sort(v); return v[len(v)/4] }
	b.ReportMetric(quartile(servers), "server-µs/event")
	b.ReportMetric(quartile(clients), "client-µs/event")
	b.ReportMetric(quartile(both), "µs/event")
	b.ReportMetric(0, "ns/op")
}
