package fencingtest

import (
	"context"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
)

// Point is a place in a commit.
type Point string

// The points, in the order in which a commit comes by. In the batch shape the
// first and the third are one, and the second is never reached.
const (
	// BeforeGate: nothing was sent. A takeover does not wait for this commit.
	BeforeGate Point = "before the gate"
	// BehindGate: the gate was passed, the callback has not begun. A takeover
	// waits, until the gate's timeout ends the session.
	BehindGate Point = "behind the gate"
	// BeforeCommit: the callback is done, COMMIT was not sent.
	BeforeCommit Point = "before commit"
	// AfterCommit: the answer to COMMIT is here, the worker was not told.
	AfterCommit Point = "after commit"
)

// Pauses stops commits on the connections that [Watch] was given.
type Pauses struct {
	mu      sync.Mutex
	pending []*Stop
}

// Watch returns the pauses of all connections that will be made with cfg. Call
// it before the pool is made: pgxpool.Config has a ConnConfig. A tracer that is
// there already is still called.
func Watch(cfg *pgx.ConnConfig) *Pauses {
	p := &Pauses{}
	t := &tracer{pauses: p}
	if cfg.Tracer == nil {
		cfg.Tracer = multitracer.New(t)
	} else {
		cfg.Tracer = multitracer.New(cfg.Tracer, t)
	}
	return p
}

// At stops the next commit that reaches a point. Several stops wait for as many
// commits.
func (p *Pauses) At(point Point) *Stop {
	s := &Stop{point: point, reached: make(chan struct{}), resumed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = append(p.pending, s)
	return s
}

// Stop is one commit's stop at a point.
type Stop struct {
	point            Point
	reached, resumed chan struct{}
	once             sync.Once
}

// Reached is closed when a commit stands at the point.
func (s *Stop) Reached() <-chan struct{} { return s.reached }

// Resume lets the commit go on, or lets the stop pass by if it was not reached
// yet. It can be called again.
func (s *Stop) Resume() { s.once.Do(func() { close(s.resumed) }) }

// pass stops here if somebody has asked for it.
func (p *Pauses) pass(point Point) {
	p.mu.Lock()
	var here *Stop
	for i, s := range p.pending {
		if s.point == point {
			here = s
			p.pending = append(p.pending[:i:i], p.pending[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	if here != nil {
		close(here.reached)
		<-here.resumed
	}
}

// tracer sees the two batches of a commit, or the one.
type tracer struct{ pauses *Pauses }

type batchKey struct{}

// part says what a batch contains of a commit.
type part struct{ gate, commit bool }

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (t *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (t *tracer) TraceBatchStart(ctx context.Context, c *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	queries := data.Batch.QueuedQueries
	var p part
	for _, q := range queries {
		p.gate = p.gate || strings.Contains(q.SQL, ".enter(") || strings.Contains(q.SQL, ".enter_many(") || strings.Contains(q.SQL, ".enter_group(")
	}
	behind := c.PgConn().TxStatus() == 'T' // the gate's transaction is open: renewals and the like begin their own
	p.commit = len(queries) > 0 && queries[len(queries)-1].SQL == "commit" && (p.gate || behind)
	if p.gate {
		t.pauses.pass(BeforeGate)
	}
	if p.commit {
		t.pauses.pass(BeforeCommit)
	}
	return context.WithValue(ctx, batchKey{}, p)
}

func (t *tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (t *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	p, _ := ctx.Value(batchKey{}).(part)
	switch {
	case data.Err != nil: // refused; there is nothing to stop in front of
	case p.commit:
		t.pauses.pass(AfterCommit)
	case p.gate:
		t.pauses.pass(BehindGate)
	}
}
