package opshttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// State is an answer of /livez or /readyz.
type State struct {
	// Problems are why it isn't well; none if it is.
	Problems []string
	// Notes are worth knowing and no problem.
	Notes []string
}

// Config says what is served. Each function must return at once.
type Config struct {
	// Live and Ready answer the two questions. Default to being well.
	Live, Ready func() State
	// Metrics answers /metrics. Defaults to 404.
	Metrics http.Handler
	// Logger receives what the server meets. Defaults to slog.Default.
	Logger *slog.Logger
}

// Server serves on one address.
type Server struct {
	listener net.Listener
	http     *http.Server
	done     chan struct{}
}

// Start begins to serve on addr, host:port. It refuses an address without a
// host, which would be all of the machine's: say 0.0.0.0 if that is meant.
func Start(addr string, cfg Config) (*Server, error) {
	if err := CheckAddr(addr); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	listener, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("serve health and metrics: the port of %s is taken by another program, perhaps by another instance of this one: %w", addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("serve health and metrics: this machine has no address %s: %w", addr, err)
	case err != nil:
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	s := &Server{listener: listener, done: make(chan struct{}), http: &http.Server{
		Handler: handler(cfg),
		// A client that sends slowly, or much, keeps nobody waiting.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("health and metrics are no longer served", "error", err)
		}
	}()
	return s, nil
}

// CheckAddr is a rule for a setting with such an address.
func CheckAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return errors.New("want host:port, such as 127.0.0.1:8081")
	}
	if host == "" {
		return errors.New("the host is missing: 127.0.0.1 serves this machine only, 0.0.0.0 everybody")
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n > 65535 {
		return errors.New("the port is not a number from 0 to 65535, such as in 127.0.0.1:8081")
	}
	return nil
}

// Addr is the address that it listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Stop ends it; answers under way have a second.
func (s *Server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}

// mark is a header of each answer, by which Probe tells this server from whatever
// else may have taken the port.
const mark = "Fenceline-Health"

func handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/livez", answer(cfg.Live))
	mux.Handle("/readyz", answer(cfg.Ready))
	if cfg.Metrics != nil {
		mux.Handle("/metrics", cfg.Metrics)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set(mark, "1")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

func answer(ask func() State) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var s State
		if ask != nil {
			s = ask()
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(s.Problems) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, s.text()) // whoever has gone away doesn't want it
	}
}

func (s State) text() string {
	var b strings.Builder
	if len(s.Problems) == 0 {
		b.WriteString("ok\n")
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "not ok: %s\n", p)
	}
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

// Probe asks a Server elsewhere, as a health check that has no HTTP client of its
// own, and returns what it said; the error says that it isn't well, or isn't
// there.
func Probe(ctx context.Context, addr, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("nothing answers at %s: %w", addr, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if response.Header.Get(mark) == "" {
		return "", fmt.Errorf("what answers at %s is another program: see where this one serves (-http), and whether its log says that the port was taken", addr)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s", path, response.Status)
	}
	return string(body), err
}
