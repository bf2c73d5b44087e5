package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// readTimes measures, from the client's side, how long the statements take with
// which a relay reads its outbox. Whose relay it is makes no difference: a
// statement that selects payloads is one.
type readTimes struct {
	mu  sync.Mutex
	all []time.Duration
}

type readBegan struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (r *readTimes) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !isRead(q.SQL) {
		return ctx
	}
	return context.WithValue(ctx, readBegan{}, time.Now())
}

func isRead(sql string) bool {
	return strings.Contains(sql, "payload") && strings.Contains(sql, "outbox") && !strings.Contains(sql, "insert")
}

// TraceQueryEnd implements pgx.QueryTracer. Reads that found nothing don't count.
func (r *readTimes) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	began, ok := ctx.Value(readBegan{}).(time.Time)
	if !ok || q.Err != nil || q.CommandTag.RowsAffected() < 2 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, time.Since(began))
}

// take gives what was measured since the last time.
func (r *readTimes) take() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}
