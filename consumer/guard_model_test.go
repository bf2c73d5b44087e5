package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

// peer does what the model's consumer and its operators do, on the tables.
type peer interface {
	read(r *outbox.Record, offset int64)
	cut()
	truncated()
	accept()
	room(want bool)
	discard(r *outbox.Record)
	adopt(r *outbox.Record)
	retry()
	redrive(r *outbox.Record)
	discardDead(r *outbox.Record)
	forget()
}

// tables is the peer: a guard, an operator, and what the handler applied.
type tables struct {
	*testing.T
	w       *world
	pool    *pgxpool.Pool
	guard   *Guard
	op      *Operator
	offsets *offsets
	applied []string
	at      Partition
}

var (
	errModel  = errors.New("the model says that it fails")
	modelNote = Note{Who: "model", Why: "walk"}
	modelKey  = StreamKey{Stream: "s", Key: "k"}
)

func newTables(t *testing.T, pool *pgxpool.Pool, w *world, seed int) *tables {
	name := fmt.Sprintf("%s %s %d", w.policy, w.start, seed)
	cfg := GuardConfig{Consumer: name, Policy: w.policy, Start: w.start, ForgetAfter: time.Nanosecond, ResumeLimit: 2}
	if w.limit > 0 {
		cfg.Limits.KeyRecords = int64(w.limit)
	}
	g, err := NewGuard(cfg)
	p := &tables{T: t, w: w, pool: pool, guard: g, offsets: newOffsets("fenceline", name), at: Partition{Topic: "s"}}
	p.ok(err)
	p.op, err = NewOperator(context.Background(), pool, OperatorConfig{Consumer: name})
	p.ok(err)
	return p
}

func (p *tables) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatalf("%v\n%s", err, strings.Join(p.w.trace, "\n"))
	}
}

// Handle applies what the model says works.
func (p *tables) Handle(_ context.Context, _ pgx.Tx, d Delivery) error {
	pos, err := strconv.ParseInt(string(d.Payload), 10, 64)
	if err != nil || p.w.bad[pos] {
		return errors.Join(errModel, err)
	}
	p.applied = append(p.applied, fmt.Sprintf("%d/%d", d.Epoch, d.Seq))
	return nil
}

// tx works in a transaction until it commits, as the runner does: an event out
// of the park that fails is noted, and the rest is done again.
func (p *tables) tx(work func(ctx context.Context, tx pgx.Tx) error) {
	p.Helper()
	for range 100 {
		before := len(p.applied)
		err := pgx.BeginTxFunc(context.Background(), p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return work(context.Background(), tx) })
		var h *HandlerError
		if !errors.As(err, &h) {
			p.ok(err)
			return
		}
		p.applied = p.applied[:before]
		if !h.Delivery.Resumed {
			p.Fatalf("%v\n%s", err, strings.Join(p.w.trace, "\n"))
		}
		p.ok(pgx.BeginTxFunc(context.Background(), p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return p.guard.Fail(context.Background(), tx, h.Delivery, h.Err)
		}))
	}
	p.Fatal("it fails for ever")
}

// goOn is the runner's look at what is pending, and the comparison.
func (p *tables) goOn() {
	p.Helper()
	for range 200 {
		var keys []StreamKey
		p.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			if keys, err = p.guard.Pending(ctx, tx, 10); err == nil && len(keys) > 0 {
				_, err = p.guard.Resume(ctx, tx, keys, p)
			}
			return err
		})
		if len(keys) == 0 {
			p.compare()
			return
		}
	}
	p.Fatalf("what is pending never ends\n%s", strings.Join(p.w.trace, "\n"))
}

func (p *tables) read(r *outbox.Record, offset int64) {
	p.Helper()
	if p.w.wrong != "" {
		return
	}
	x := *r
	x.ID, x.Type, x.Source, x.CreatedAt = uuid.New(), "t", "model", time.UnixMilli(1_764_000_000_000)
	if x.Kind == outbox.KindData {
		x.Payload = strconv.AppendInt(nil, r.Pos, 10)
	}
	d := NewDelivery(p.at, KafkaRecord{Offset: offset, Time: x.CreatedAt, Key: []byte(x.Key), Value: outbox.WireValue(&x), Headers: outbox.AppendWireHeaders(nil, &x)})
	if d.Malformed != nil {
		p.Fatal(d.Malformed)
	}
	if p.w.bad[r.Pos] && x.Kind == outbox.KindData {
		d.Failed = errModel
	}
	p.tx(func(ctx context.Context, tx pgx.Tx) error {
		results, err := p.guard.Apply(ctx, tx, []Delivery{d}, p)
		if err != nil {
			return err
		}
		_, err = p.guard.Progress(ctx, tx, Read{Partition: p.at, From: offset, Next: offset + 1}, results)
		return err
	})
	p.goOn()
}

func (p *tables) exec(sql string, args ...any) {
	p.Helper()
	_, err := p.pool.Exec(context.Background(), sql, append([]any{p.guard.cfg.Consumer}, args...)...)
	p.ok(err)
}

func (p *tables) cut() {
	if p.w.low < 0 {
		p.exec("update fenceline.consumer_offset set overflow_offset = null, overflow_end = null where consumer = $1")
	} else {
		p.exec("update fenceline.consumer_offset set overflow_offset = $2 where consumer = $1", p.w.low)
	}
}

func (p *tables) truncated() {
	p.exec("select fenceline.restart_partition($1, 's', 0, $2, true, 0, $2)", p.w.logStart)
}

func (p *tables) accept() {
	_, err := p.op.AcceptTruncation(context.Background(), p.at, modelNote)
	p.ok(err)
	p.goOn()
}

func (p *tables) room(want bool) {
	p.tx(func(ctx context.Context, tx pgx.Tx) error {
		got, err := p.guard.Room(ctx, tx, p.at)
		if err == nil && got != want {
			p.Fatalf("room: %v, want %v\n%s", got, want, strings.Join(p.w.trace, "\n"))
		}
		return err
	})
}

func (p *tables) discard(r *outbox.Record) {
	p.ok(p.op.Discard(context.Background(), modelKey, r.Epoch, r.Seq, r.Seq, modelNote))
	p.goOn()
}

func (p *tables) adopt(r *outbox.Record) {
	_, err := p.op.Adopt(context.Background(), modelKey, r.Epoch, r.First(), modelNote)
	p.ok(err)
	if err := p.op.Retry(context.Background(), modelKey, modelNote); err != nil && !errors.Is(err, ErrRefused) {
		p.ok(err)
	}
	p.goOn()
}

func (p *tables) retry() {
	p.ok(p.op.Retry(context.Background(), modelKey, modelNote))
	p.goOn()
}

func (p *tables) redrive(r *outbox.Record) {
	p.ok(p.op.RetryDead(context.Background(), modelKey, r.Epoch, r.Seq, modelNote))
	p.goOn()
}

func (p *tables) discardDead(r *outbox.Record) {
	p.ok(p.op.DiscardDead(context.Background(), modelKey, r.Epoch, r.Seq, modelNote))
	p.goOn()
}

func (p *tables) forget() {
	var f Forgetting
	for !f.Done {
		p.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := p.guard.Forget(ctx, tx, &f)
			return err
		})
	}
	p.compare()
}

// compare fails the walk if the tables say anything else than the model.
func (p *tables) compare() {
	p.Helper()
	w := p.w
	got, want := p.state(), p.modelState()
	if got != want {
		p.Fatalf("the tables:\n%s\nthe model:\n%s\n%s", got, want, strings.Join(w.trace, "\n"))
	}
}

func (p *tables) modelState() string {
	w := p.w
	row, blocked := Row{}, false
	if w.row != nil {
		row, blocked = *w.row, w.row.Blocked != ""
	}
	var parked, dead, applied []string
	for _, x := range w.park {
		parked = append(parked, fmt.Sprintf("%d/%d %s failing=%v", x.rec.Epoch, x.rec.Seq, x.rec.Kind, x.failing))
	}
	for pos, r := range w.dead {
		dead = append(dead, fmt.Sprintf("%d/%d discarded=%v", r.Epoch, r.Seq, w.discarded[pos]))
	}
	for _, r := range w.order {
		applied = append(applied, fmt.Sprintf("%d/%d", r.Epoch, r.Seq))
	}
	return stateText(row, blocked, w.forgotten, w.low, w.high, parked, dead, applied)
}

func stateText(row Row, blocked bool, forgotten int64, low, high int, parked, dead, applied []string) string {
	row.Blocked = ""
	slices.Sort(parked)
	slices.Sort(dead)
	return fmt.Sprintf("guard %+v blocked %v, forgotten %d, overflow %d-%d, parked %v, dead %v, applied %v", row, blocked, forgotten, low, high, parked, dead, applied)
}

func (p *tables) state() string {
	ctx := context.Background()
	var row Row
	g, err := p.op.Guard(ctx, modelKey)
	if err == nil && g.Epoch != 0 {
		row = g.Row
	} else if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		p.ok(err)
	}
	list := func(sql string) []string {
		rows, err := p.pool.Query(ctx, sql, p.guard.cfg.Consumer)
		p.ok(err)
		l, err := pgx.CollectRows(rows, pgx.RowTo[string])
		p.ok(err)
		return l
	}
	parked := list("select epoch || '/' || seq || ' ' || kind || ' failing=' || (reason = 'failing') from fenceline.parked where consumer = $1")
	dead := list("select epoch || '/' || seq || ' discarded=' || (discarded_at is not null) from fenceline.dead where consumer = $1")
	var forgotten int64
	var low, high int
	p.ok(p.pool.QueryRow(ctx, `select coalesce((select forgotten from fenceline.consumer_stream where consumer = $1), 0),
		coalesce((select overflow_offset from fenceline.consumer_offset where consumer = $1), -1),
		coalesce((select overflow_end from fenceline.consumer_offset where consumer = $1), -1)`, p.guard.cfg.Consumer).Scan(&forgotten, &low, &high))
	if n := int64(len(parked) + strings.Count(strings.Join(dead, " "), "discarded=false")); err == nil && g.Parked != n {
		p.Fatalf("the guard counts %d, and %d are kept\n%s", g.Parked, n, strings.Join(p.w.trace, "\n"))
	}
	return stateText(row, g.Blocked != "", forgotten, low, high, parked, dead, p.applied)
}

// The guard on its tables, with its park, limits, letters, operators and
// everything else, goes through the model's histories in step with the model,
// which is checked against a plain fold. FENCELINE_LONG=1 goes through many.
func TestTheTablesGoThroughTheModelsHistoriesInStepWithIt(t *testing.T) {
	t.Parallel()
	walks := 8
	if os.Getenv("FENCELINE_LONG") == "1" {
		walks = 400
	}
	pool, err := pgxpool.New(context.Background(), pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, c := range []struct {
		policy Policy
		start  Start
	}{{Strict, FromFirstSeen}, {Strict, FromOrigin}, {State, FromFirstSeen}} {
		t.Run(string(c.policy)+" "+string(c.start), func(t *testing.T) {
			t.Parallel()
			for seed := range walks {
				rnd := rand.New(rand.NewPCG(uint64(seed), 23))
				w := newWorld(c.policy, c.start)
				w.limit = seed % 4
				w.peer = newTables(t, pool, w, seed)
				for range 25 + rnd.IntN(20) {
					if w.step(rnd, seed%4 != 0); w.wrong != "" {
						break
					}
				}
				if w.wrong == "" {
					w.close()
				}
				if w.wrong != "" {
					t.Fatalf("seed %d: %s", seed, w.wrong)
				}
			}
		})
	}
}
