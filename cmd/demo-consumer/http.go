package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
)

// checkListen is the rule for the address to listen on.
func checkListen(v string) error {
	if v == "" || v == "off" {
		return nil
	}
	if _, _, err := net.SplitHostPort(v); err != nil {
		return errors.New(`want host:port, or "off"`)
	}
	return nil
}

// serve answers over HTTP until the returned function is called. There is
// nothing to be changed here, and nothing to be seen of events but the read model.
func serve(address string, pool *pgxpool.Pool, model *readmodel.Model, m *metrics, log *slog.Logger) (stop func(), err error) {
	if address == "" || address == "off" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the HTTP address can't be used: %w; choose another one with -http, or \"off\"", err)
	}
	server := &http.Server{Handler: routes(pool, model, m), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the HTTP server has ended", "err", err)
		}
	}()
	log.Info("listening", "http", "http://"+listener.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-ended
	}, nil
}

func routes(pool *pgxpool.Pool, model *readmodel.Model, m *metrics) http.Handler {
	mux := http.NewServeMux()
	// Alive says only that the process runs: a database or a broker that is away
	// is no reason to restart it.
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, why := m.waiting()
		switch {
		case ready:
			answer(w, http.StatusOK, map[string]string{"status": "ready"})
		case len(why) > 0:
			answer(w, http.StatusServiceUnavailable, map[string]any{"status": "waiting", "partitions": why})
		default:
			answer(w, http.StatusServiceUnavailable, map[string]string{"status": "no partition was assigned yet"})
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /reports", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		networks, err := model.Read(ctx, pool)
		if err != nil {
			answer(w, http.StatusServiceUnavailable, map[string]string{"error": "the read model can't be read now"})
			return
		}
		answer(w, http.StatusOK, networks)
	})
	return mux
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}
