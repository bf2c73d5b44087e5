package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/opshttp"
	"github.com/fenceline/fenceline/relay"
)

// stuckAfter is how long one look into the outbox may take before /livez fails.
const stuckAfter = time.Minute

// defaultHTTP is where health and metrics are served, and looked for.
const defaultHTTP = "127.0.0.1:8081"

// ops is what "relay run" serves over HTTP.
type ops struct {
	addr   string
	every  time.Duration
	health relay.Health
	*metrics
}

func (o *ops) register(s *config.Set) {
	s.String(&o.addr, "http", "HTTP", defaultHTTP, "address, host:port, on which /livez, /readyz and /metrics are served; without passwords, so 0.0.0.0 is for networks in which everybody may read counts; off turns it off", config.Check(checkHTTP))
	s.Duration(&o.every, "metrics-every", "METRICS_EVERY", 10*time.Second, time.Second, time.Hour, "time between two looks into the database for the metrics of the backlog")
}

func checkHTTP(addr string) error {
	if addr == "off" {
		return nil
	}
	return opshttp.CheckAddr(addr)
}

// serve begins to serve, and returns what ends it. A port that is taken, by a
// second relay on the machine, is no reason not to publish.
func (o *ops) serve(ctx context.Context, pool *pgxpool.Pool, name string, log *slog.Logger) (stop func()) {
	if o.addr == "off" {
		return func() {}
	}
	server, err := opshttp.Start(o.addr, opshttp.Config{Live: o.live, Ready: o.ready, Metrics: o.handler(), Logger: log})
	if err != nil {
		log.Error("cannot serve health and metrics; events are published all the same", "error", err, "remedy", "choose another address with -http, or -http off")
		return func() {}
	}
	log.Info("serving health and metrics", "address", server.Addr())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.watch(ctx, pool, name, log)
	}()
	return func() {
		cancel()
		<-done
		server.Stop()
	}
}

func (o *ops) live() (s opshttp.State) {
	if err := o.health.Stuck(stuckAfter); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	return s
}

func (o *ops) ready() (s opshttp.State) {
	if !o.health.Started() {
		s.Problems = append(s.Problems, "database and schema have not been found to be as they must be, or it is stopping; its log says more")
	}
	s.Notes = o.health.Notes()
	return s
}

// watch reads the figures of the database now and then, and not when somebody
// asks: whoever scrapes must not wait for the database, nor load it.
func (o *ops) watch(ctx context.Context, pool *pgxpool.Pool, name string, log *slog.Logger) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for troubled := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(o.every)
		if err := o.read(ctx, pool, name); ctx.Err() == nil {
			if err != nil && !troubled {
				log.Warn("cannot read the figures for the metrics", "error", err)
			}
			troubled = err != nil
		}
	}
}

func (o *ops) read(ctx context.Context, pool *pgxpool.Pool, name string) error {
	ctx, cancel := context.WithTimeout(ctx, max(o.every, 10*time.Second))
	defer cancel()
	st, err := relay.ReadStatus(ctx, pool, name)
	if err != nil {
		return err
	}
	box, err := relay.ReadOutbox(ctx, pool, name)
	if err != nil {
		return err
	}
	o.look(st, box)
	return nil
}
