package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/quakes"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// worker is a producer: it holds the lease of a network, works through its
// reports, and commits for each the result together with its event.
type worker struct {
	cfg     childConfig
	pool    *pgxpool.Pool
	fences  *fencing.Fences
	results string // the table
	reports map[string][]quakes.Report
	byID    map[string]quakes.Report
	pause   time.Duration // between two reports

	// Of the story alone.
	control *control
	leases  map[string]*fencing.Lease
	proxy   *pgproxy.Proxy
}

func newWorker(ctx context.Context, cfg childConfig, pool *pgxpool.Pool, reports []quakes.Report, wake func()) (*worker, error) {
	fences, err := fencing.New(ctx, pool, fencing.Config{Schema: cfg.Schema, Holder: cfg.Name, Wake: wake})
	if err != nil {
		return nil, err
	}
	w := &worker{
		cfg: cfg, pool: pool, fences: fences, results: schema.Quote(cfg.WorkSchema) + ".result",
		reports: map[string][]quakes.Report{}, byID: map[string]quakes.Report{}, leases: map[string]*fencing.Lease{},
	}
	for _, r := range reports {
		w.reports[r.Net] = append(w.reports[r.Net], r)
		w.byID[r.ID] = r
	}
	return w, nil
}

// createResults makes the workers' own table.
func createResults(ctx context.Context, db readmodel.DB, name string) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after Commit it has nothing to do
	for _, sql := range []string{
		"create schema if not exists " + schema.Quote(name),
		`create table if not exists ` + schema.Quote(name) + `.result (
			id    text primary key,
			net   text not null,
			epoch bigint not null,
			token bigint not null,
			body  bytea not null)`,
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create the table of results: %w", err)
		}
	}
	return tx.Commit(ctx)
}

// commit is all that a producer has to write: its result and its event, inside
// the gate. Whether it is called for the first time or as a retry makes no
// difference.
func (w *worker) commit(ctx context.Context, lease *fencing.Lease, id string, body []byte, inside func(context.Context) context.Context) (fencing.Receipt, error) {
	content := fencing.Content{Step: id, Type: "application/json", Bytes: body}
	return lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
		if inside != nil {
			ctx = inside(ctx)
		}
		p := lease.Position()
		if _, err := tx.Exec(ctx, "insert into "+w.results+" (id, net, epoch, token, body) values ($1, $2, $3, $4, $5)", id, p.Key, p.Epoch, p.Token, body); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{Topic: w.cfg.Topic, Type: readmodel.EventType, Subject: id, Source: "fenceline/demo", Payload: body})
	})
}

// worked is what a worker has done.
type worked struct {
	Committed, Stale int
}

// work goes through the reports of the given networks until limit are
// committed, or all are done.
func (w *worker) work(ctx context.Context, networks []string, limit int) (worked, error) {
	var sum worked
	open := slices.Clone(networks)
	for sum.Committed < limit && len(open) > 0 {
		rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		var still []string
		before := sum.Committed
		for _, network := range open {
			if sum.Committed >= limit {
				return sum, nil
			}
			done, err := w.turn(ctx, network, min(40, limit-sum.Committed), &sum)
			if err != nil {
				return sum, err
			}
			if !done {
				still = append(still, network)
			}
		}
		open = still
		if sum.Committed == before && len(open) > 0 { // all that is left is held by others
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return sum, ctx.Err()
			}
		}
	}
	return sum, nil
}

// turn takes the lease of a network and commits up to n of its reports. done
// says that it has none left.
func (w *worker) turn(ctx context.Context, network string, n int, sum *worked) (done bool, err error) {
	left, err := w.undone(ctx, network)
	if err != nil || len(left) == 0 {
		return err == nil, w.passing(ctx, err)
	}
	lease, err := w.fences.Acquire(ctx, network, fencing.LeaseConfig{TTL: w.cfg.LeaseTTL})
	if errors.Is(err, fencing.ErrHeld) || errors.Is(err, fencing.ErrBlocked) {
		return false, nil
	}
	if err != nil {
		return false, w.passing(ctx, err)
	}
	defer lease.Release(ctx) //nolint:errcheck // it expires by itself
	// Read again under the lease: the previous holder may have gone on until now.
	if left, err = w.undone(ctx, network); err != nil {
		return false, w.passing(ctx, err)
	}
	for i, r := range left {
		if i == n {
			return false, nil
		}
		// Where the answer is lost, the same again, and the receipt answers.
		_, err = fencing.Retry(ctx, func(ctx context.Context) (fencing.Receipt, error) {
			return w.commit(ctx, lease, r.ID, r.Line, nil)
		})
		switch {
		case err == nil, errors.Is(err, fencing.ErrNotReplicated): // committed; a primary that is lost now may take it with it
			sum.Committed++
		case errors.Is(err, fencing.ErrStale):
			sum.Stale++
			return false, nil // it is somebody else's turn
		case errors.Is(err, fencing.ErrLeaseLost), errors.Is(err, fencing.ErrGateTimeout):
			return false, nil
		default:
			return false, w.passing(ctx, err)
		}
		if w.pause > 0 {
			select {
			case <-time.After(w.pause):
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
	}
	return true, nil
}

// passing is nil for what is worth another turn: an outage, a failover, a session that
// was ended. What no waiting mends ends the worker, with what it has to say: a stop of
// its caller's, a mistake, a refusal that stands (another login's key, a closed one, a
// database that was restored), a right that is missing.
func (w *worker) passing(ctx context.Context, err error) error {
	var refused *fencing.RefusedError
	var answer *pgconn.PgError
	switch {
	case err == nil || ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &refused), errors.Is(err, fencing.ErrInvalid), errors.Is(err, fencing.ErrMisuse):
		return err
	case errors.As(err, &answer) && slices.Contains([]string{"28", "3D", "42"}, answer.Code[:min(2, len(answer.Code))]): // login, database, rights and names
		return err
	}
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// undone lists the reports of a network that have no result yet.
func (w *worker) undone(ctx context.Context, network string) ([]quakes.Report, error) {
	rows, err := w.pool.Query(ctx, "select id from "+w.results+" where net = $1", network)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	done := make(map[string]bool, len(ids))
	for _, id := range ids {
		done[id] = true
	}
	var left []quakes.Report
	for _, r := range w.reports[network] {
		if !done[r.ID] {
			left = append(left, r)
		}
	}
	return left, nil
}

// What follows lets the story direct a worker step by step.

type workArgs struct {
	Networks []string
	Limit    int
}

type acquireAnswer struct {
	Position fencing.Position
	HeldBy   string // empty: acquired
}

type commitArgs struct {
	Key, ID string
	Hold    string // "before" or "after" the gate: stop there until told to go
	Other   bool   // other content than the report's
	Drop    bool   // lose the answer to COMMIT
}

// outcome is the answer to one commit.
type outcome struct {
	Answer   string
	Text     string
	Position fencing.Position
}

func outcomeOf(p fencing.Position, r fencing.Receipt, err error) outcome {
	o := outcome{Position: p}
	if err == nil {
		o.Answer = "committed"
		if r.Replayed {
			o.Answer = "replayed"
		}
		return o
	}
	o.Text = err.Error()
	o.Answer = "error"
	for _, known := range []struct {
		err  error
		name string
	}{
		{fencing.ErrStale, "stale"}, {fencing.ErrConflict, "conflict"}, {fencing.ErrUnconfirmable, "unconfirmable"}, {fencing.ErrClosed, "closed"},
		{fencing.ErrUnknownOutcome, "unknown outcome"}, {fencing.ErrGateTimeout, "session ended"}, {fencing.ErrLeaseLost, "lease lost"},
	} {
		if errors.Is(err, known.err) {
			o.Answer = known.name
			break
		}
	}
	return o
}

func workerChild(ctx context.Context, stop context.CancelFunc, c *control, cfg childConfig) error {
	reports, err := readInput(cfg.Input)
	if err != nil {
		return err
	}
	// Everything goes through a proxy of the worker's own, which can lose an
	// answer of the server, as networks do.
	pc, err := cfg.poolConfig()
	if err != nil {
		return err
	}
	proxy, err := pgproxy.Listen(net.JoinHostPort(pc.ConnConfig.Host, strconv.Itoa(int(pc.ConnConfig.Port))))
	if err != nil {
		return err
	}
	defer proxy.Close()           //nolint:errcheck // at the end of the process
	pc.ConnConfig.Fallbacks = nil // with other addresses, past the proxy
	pc.ConnConfig.TLSConfig = nil // it speaks plain text only
	host, port, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	pc.ConnConfig.Host, pc.ConnConfig.Port = host, uint16(number)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return err
	}
	defer pool.Close()
	// Nobody is woken here: the faults of the story are played on this worker's
	// connections, and are to hit what it commits.
	w, err := newWorker(ctx, cfg, pool, reports, nil)
	if err != nil {
		return err
	}
	w.control, w.proxy = c, proxy
	go c.serve(ctx, stop, w.handle)
	<-ctx.Done()
	return nil
}

func (w *worker) handle(ctx context.Context, verb string, body json.RawMessage) (any, error) {
	switch verb {
	case "work":
		var a workArgs
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		return w.work(ctx, a.Networks, a.Limit)
	case "acquire":
		var key string
		if err := json.Unmarshal(body, &key); err != nil {
			return nil, err
		}
		return w.acquire(ctx, key)
	case "commit":
		var a commitArgs
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		return w.directed(ctx, a)
	case "release":
		var key string
		if err := json.Unmarshal(body, &key); err != nil {
			return nil, err
		}
		return nil, w.leases[key].Release(ctx)
	}
	return nil, fmt.Errorf("unknown request %q", verb)
}

// acquire takes a lease, or waits until it can.
func (w *worker) acquire(ctx context.Context, key string) (acquireAnswer, error) {
	var a acquireAnswer
	for {
		lease, err := w.fences.Acquire(ctx, key, fencing.LeaseConfig{TTL: w.cfg.LeaseTTL})
		var held *fencing.HeldError
		switch {
		case err == nil:
			w.leases[key] = lease
			a.Position = lease.Position()
			return a, nil
		case errors.As(err, &held):
			a.HeldBy = held.Holder
		case !errors.Is(err, fencing.ErrBlocked):
			return a, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

func (w *worker) directed(ctx context.Context, a commitArgs) (outcome, error) {
	lease := w.leases[a.Key]
	if lease == nil {
		return outcome{}, fmt.Errorf("no lease of %q was acquired", a.Key)
	}
	body := w.byID[a.ID].Line
	if a.Other {
		body = append([]byte(" "), body...)
	}
	if a.Hold == "before" {
		w.control.at("before the gate")
	}
	var inside func(context.Context) context.Context
	if a.Hold == "after" {
		inside = func(ctx context.Context) context.Context {
			w.control.at("behind the gate")
			// A worker that doesn't look at its context any more: it is not what
			// the promise rests on.
			return context.WithoutCancel(ctx)
		}
	}
	if a.Drop {
		w.proxy.DropNextCommitAnswer(a.ID)
	}
	r, err := w.commit(ctx, lease, a.ID, body, inside)
	return outcomeOf(lease.Position(), r, err), nil
}
