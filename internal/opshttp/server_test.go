package opshttp

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := Start("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func request(t *testing.T, s *Server, method, path string, body io.Reader) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close() //nolint:errcheck // a test's
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, string(text)
}

func TestEachQuestionIsAnsweredWithTheReasons(t *testing.T) {
	t.Parallel()
	s := start(t, Config{
		Live:    func() State { return State{Notes: []string{"standing by"}} },
		Ready:   func() State { return State{Problems: []string{"no database", "no schema"}, Notes: []string{"paused"}} },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fenceline_up 1") }),
	})
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/livez", 200, "ok\nnote: standing by\n"},
		{"HEAD", "/livez", 200, ""},
		{"GET", "/readyz", 503, "not ok: no database\nnot ok: no schema\nnote: paused\n"},
		{"GET", "/metrics", 200, "fenceline_up 1"},
		{"GET", "/", 404, "404 page not found\n"},
		{"GET", "/debug/pprof/", 404, "404 page not found\n"},
		{"POST", "/livez", 405, "only GET and HEAD\n"},
		{"DELETE", "/metrics", 405, "only GET and HEAD\n"},
	} {
		code, body := request(t, s, c.method, c.path, nil)
		if code != c.code || body != c.body {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, code, body, c.code, c.body)
		}
	}
	if code, _ := request(t, s, "POST", "/livez", strings.NewReader(strings.Repeat("x", 10<<20))); code != 405 {
		t.Errorf("a large body: %d", code)
	}
	text, err := Probe(t.Context(), s.Addr(), "/livez")
	if err != nil || text != "ok\nnote: standing by\n" {
		t.Errorf("probe: %q, %v", text, err)
	}
	text, err = Probe(t.Context(), s.Addr(), "/readyz")
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(text, "no database") {
		t.Errorf("probe: %q, %v", text, err)
	}
}

func TestAProbeTellsAnotherProgramFromThisOne(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	defer other.Close()
	text, err := Probe(t.Context(), other.Listener.Addr().String(), "/livez")
	if err == nil || text != "" || !strings.Contains(err.Error(), "is another program") {
		t.Errorf("%q, %v", text, err)
	}
}

func TestNothingConfiguredIsWell(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	if code, body := request(t, s, "GET", "/readyz", nil); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := request(t, s, "GET", "/metrics", nil); code != 404 {
		t.Errorf("metrics: %d", code)
	}
	s.Stop()
	if text, err := Probe(t.Context(), s.Addr(), "/livez"); err == nil || !strings.Contains(err.Error(), "nothing answers") {
		t.Errorf("a probe of nobody: %q, %v", text, err)
	}
}

func TestAnAddressSaysWhoItIsFor(t *testing.T) {
	t.Parallel()
	for addr, ok := range map[string]bool{"127.0.0.1:8081": true, "[::1]:1": true, "0.0.0.0:8081": true, "localhost:0": true, ":8081": false, "8081": false, "127.0.0.1": false, "127.0.0.1:": false, "": false} {
		if err := CheckAddr(addr); (err == nil) != ok {
			t.Errorf("%q: %v", addr, err)
		}
		if !ok {
			if s, err := Start(addr, Config{}); err == nil {
				s.Stop()
				t.Errorf("%q is served", addr)
			}
		}
	}
	s := start(t, Config{})
	if _, err := Start(s.Addr(), Config{}); err == nil || !strings.Contains(err.Error(), "the port of "+s.Addr()+" is taken by another program") {
		t.Errorf("an address is served twice: %v", err)
	}
	if _, err := Start("203.0.113.1:8081", Config{}); err == nil || !strings.Contains(err.Error(), "this machine has no address 203.0.113.1:8081") {
		t.Errorf("an address of somebody else's: %v", err)
	}
}

func TestAClientThatSendsLargeHeadersIsTurnedAway(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a test's
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	go func() {
		fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	}()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("%q, %v", line, err)
	}
}
