package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestOverHTTPTheServiceSaysHowItIsAndChangesNothing(t *testing.T) {
	pool := pgtest.Pool(t)
	model, err := readmodel.New("quake_report")
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics()
	server := httptest.NewServer(routes(pool, model, m))
	defer server.Close()
	ask := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close() //nolint:errcheck // read to its end
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	want := func(method, path string, status int, texts ...string) {
		t.Helper()
		code, body := ask(method, path)
		if code != status {
			t.Errorf("%s %s: %d, want %d", method, path, code, status)
		}
		for _, text := range texts {
			if !strings.Contains(body, text) {
				t.Errorf("%s %s: no %q in %s", method, path, text, body)
			}
		}
	}
	want("GET", "/livez", 200)
	want("GET", "/readyz", 503, "no partition was assigned")
	want("GET", "/reports", 503, "can't be read now") // without a table

	p := consumer.Partition{Topic: "quakes", ID: 2}
	m.PartitionChanged(consumer.PartitionChange{Partition: p, State: consumer.Reading})
	want("GET", "/readyz", 200)
	m.PartitionChanged(consumer.PartitionChange{Partition: p, State: consumer.Waiting, Reason: errors.New("the broker is away")})
	want("GET", "/readyz", 503, "quakes/2", "the broker is away")
	want("GET", "/livez", 200) // and it is not restarted for that
	m.PartitionChanged(consumer.PartitionChange{Partition: p, State: consumer.Reading})
	m.Committed(consumer.Committed{Partition: p, Next: 7, HighWatermark: 10, Results: []consumer.Result{{Outcome: consumer.Applied}, {Outcome: consumer.Applied, Resumed: true}, {Outcome: consumer.Stale}}})
	m.Failing(consumer.Failure{Passing: true})
	m.Alarm(consumer.Alarm{Kind: consumer.Overdue})
	want("GET", "/metrics", 200, `fenceline_consumer_records_total{outcome="applied"} 2`, `fenceline_consumer_lag_records{partition="2",topic="quakes"} 3`,
		`fenceline_consumer_failures_total{passing="true"} 1`, `fenceline_consumer_alarms_total{kind="overdue"} 1`, "fenceline_consumer_resumed_total 1")
	m.PartitionChanged(consumer.PartitionChange{Partition: p, State: consumer.Released})
	if _, body := ask("GET", "/metrics"); strings.Contains(body, "lag_records{") {
		t.Error("the lag of a partition that is another member's is still told")
	}
	if err := model.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "insert into quake_report.network values ('ci', 3, 4.5, now())"); err != nil {
		t.Fatal(err)
	}
	_, body := ask("GET", "/reports")
	var networks []readmodel.Network
	if err := json.Unmarshal([]byte(body), &networks); err != nil || len(networks) != 1 || networks[0].Reports != 3 {
		t.Errorf("reports: %s, %v", body, err)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/reports"} {
		want("POST", path, 405)
	}
	want("GET", "/", 404)
}
