package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fenceline/fenceline/outbox"
)

// batch is one transaction's work.
type batch struct {
	g   *Guard
	ctx context.Context
	tx  pgx.Tx
	h   Handler

	entries map[StreamKey]*entry
	order   []StreamKey // in the order in which they were locked

	now       time.Time
	forgotten map[string]int64
	known     map[string]bool         // streams that have a row in consumer_stream
	settings  map[string]StreamConfig // of operators: as the guards were written
	truncated map[Partition]bool
	overflow  map[Partition]bool // something of it did not fit, and was not read again
	dead      map[Position]deadState

	queue   pgx.Batch // what is to be written, in order
	tells   bool      // the answer to something that is or was queued adds to the results
	last    *last     // of the caller, who sends what is written last; nil: it is sent here
	index   int       // the delivery that is being decided
	budget  int       // parked records that may still be decided
	resumed []Result
	more    map[StreamKey]bool // streams whose park the budget cut short

	operator bool // decides, and applies nothing
	admitted bool // an operator vouches for the record in hand: row 1 doesn't hold
	refusals      // what did not fit

	open, openBytes int64 // of the quarantine, -1: not counted yet
}

func newBatch(ctx context.Context, g *Guard, tx pgx.Tx, h Handler) *batch {
	return &batch{g: g, ctx: ctx, tx: tx, h: h, budget: g.cfg.ResumeLimit, more: make(map[StreamKey]bool), open: -1}
}

// marked sets More in the results of streams that have more, and Unread where a
// stream has moved of which something did not fit. (Of a state stream that is dead
// letters, which a move makes stale.)
func (b *batch) marked(results []Result) []Result {
	for i := range results {
		r := &results[i]
		r.More = b.more[r.StreamKey]
		if e := b.entries[r.StreamKey]; e != nil && len(e.unstored) > 0 && (r.Outcome == Applied || r.Outcome == Absorbed) {
			r.Unread = b.holds(e) && b.stream(r.Stream).Policy != State
		}
	}
	return results
}

// entry is a locked guard.
type entry struct {
	StreamKey
	row     *Row // nil: nothing is known of the stream
	changed bool
	tid     pgtype.TID // where it lies

	parked, bytes int64     // of what is parked, or buried
	unstored      []string  // partitions of which a record did not fit
	epochs        Missed    // and of which epochs these records were, at least
	flagged       bool      // these two have changed
	top           *Delivery // what is parked last, while it is known
	recheck       bool      // parked records may go on, and nobody has tried

	was struct { // as it was locked
		row           Row
		parked, bytes int64
		recheck       bool
	}

	queued, queuedBytes int64 // what may be stored when the queue is written
}

type deadState int

const (
	notDead deadState = iota
	deadLetter
	discarded
)

// load locks the guards of keys and reads what decisions depend on, in one
// round trip: statements of a pipelined batch have a snapshot each, so what
// comes after the lock is read after the lock.
func (b *batch) load(keys []StreamKey, ds []Delivery) error {
	slices.SortFunc(keys, func(x, y StreamKey) int {
		if c := strings.Compare(x.Stream, y.Stream); c != 0 {
			return c
		}
		return strings.Compare(x.Key, y.Key)
	})
	keys = slices.Compact(keys)
	b.order = keys
	b.entries = make(map[StreamKey]*entry, len(keys))
	strangers := b.g.known.strangers(keys)
	for create := strangers; ; create = keys {
		if err := b.lock(keys, create, ds); err != nil {
			return err
		}
		if len(b.entries) == len(keys) {
			break
		}
		// A guard that was known, or was there a statement ago, has been forgotten:
		// create it anew. The others are locked by now, so this is out of order, and
		// two who do it at the same time might wait for each other; the database
		// would end one of them, which is then tried again.
	}
	// A guard at epoch 0 may be of this transaction, and be gone with it.
	b.g.known.note(slices.DeleteFunc(strangers, func(k StreamKey) bool { return b.entries[k].was.row.Epoch == 0 }))
	return b.checkStreams()
}

func splitKeys(keys []StreamKey) (streams, ks []string) {
	streams, ks = make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		streams[i], ks[i] = k.Stream, k.Key
	}
	return streams, ks
}

// lock creates guards and locks those of keys, which are sorted.
func (b *batch) lock(keys, create []StreamKey, ds []Delivery) error {
	name, sql := b.g.cfg.Consumer, &b.g.sql
	streams, ks := splitKeys(keys)
	distinct := slices.Compact(slices.Clone(streams))

	var q pgx.Batch
	if len(create) > 0 {
		s, k := splitKeys(create)
		q.Queue(sql.create, name, s, k)
	}
	locked := func(rows pgx.Rows) error { return b.readGuards(rows, keys) }
	if len(keys) == 1 {
		q.Queue(sql.lockOne, name, keys[0].Stream, keys[0].Key).Query(locked)
	} else {
		q.Queue(sql.lock, name, streams, ks).Query(locked)
	}
	q.Queue(sql.facts, name, distinct).Query(b.readFacts)
	if ps := b.statePositions(ds); len(ps.epochs) > 0 {
		q.Queue(sql.dead, name, ps.streams, ps.keys, ps.epochs, ps.seqs).Query(func(rows pgx.Rows) error { return b.readDead(rows) })
	}
	if err := b.tx.SendBatch(b.ctx, &q).Close(); err != nil {
		if errors.Is(err, ErrIsolation) || errors.Is(err, ErrStreamChanged) {
			return err
		}
		return fmt.Errorf("consumer: locking the guards: %w", err)
	}
	return nil
}

func (b *batch) readGuards(rows pgx.Rows, keys []StreamKey) error {
	var n int64
	var rest *string
	entries := make([]entry, len(keys)) // one allocation instead of hundreds
	for i := 0; rows.Next(); i++ {
		if i == len(entries) {
			return errors.New("there are more guards than keys")
		}
		e := &entries[i]
		r := &e.was.row
		if err := rows.Scan(&n, &e.tid, &r.Epoch, &r.Token, &r.Seq, &r.StartEpoch, &r.StartSeq, &r.Settled, &rest); err != nil {
			return err
		}
		if n < 1 || n > int64(len(keys)) {
			return fmt.Errorf("a guard is number %d of %d", n, len(keys))
		}
		e.StreamKey = keys[n-1]
		if rest != nil {
			if err := e.readRest(*rest); err != nil {
				return fmt.Errorf("the guard of %s: %w", e.StreamKey, err)
			}
		}
		if r.Epoch != 0 {
			e.row = r // which is replaced, and never changed
		}
		e.was.parked, e.was.bytes, e.was.recheck = e.parked, e.bytes, e.recheck
		b.entries[e.StreamKey] = e
	}
	return rows.Err()
}

// readRest reads what most guards don't have.
func (e *entry) readRest(text string) (err error) {
	var rest struct {
		EndSeq         int64    `json:"end_seq"`
		WaitingEpoch   int64    `json:"waiting_epoch"`
		Blocked        Reason   `json:"blocked"`
		ParkedRows     int64    `json:"parked_rows"`
		ParkedBytes    int64    `json:"parked_bytes"`
		Recheck        bool     `json:"recheck"`
		Missed         string   `json:"missed"`
		UnstoredEpochs string   `json:"unstored_epochs"`
		Unstored       []string `json:"unstored"`
	}
	if err := json.Unmarshal([]byte(text), &rest); err != nil {
		return err
	}
	r := &e.was.row
	r.EndSeq, r.WaitingEpoch, r.Blocked = rest.EndSeq, rest.WaitingEpoch, rest.Blocked
	e.parked, e.bytes, e.recheck, e.unstored = rest.ParkedRows, rest.ParkedBytes, rest.Recheck, rest.Unstored
	if e.epochs, err = parseMissed(rest.UnstoredEpochs); err != nil {
		return err
	}
	r.Missed, err = parseMissed(rest.Missed)
	return err
}

// stream is what holds for a stream.
func (b *batch) stream(name string) StreamConfig {
	if b.operator {
		return b.settings[name]
	}
	return b.g.stream(name)
}

type positions struct {
	streams, keys []string
	epochs, seqs  []int64
}

func (ps *positions) add(at Position) {
	ps.streams, ps.keys = append(ps.streams, at.Stream), append(ps.keys, at.Key)
	ps.epochs, ps.seqs = append(ps.epochs, at.Epoch), append(ps.seqs, at.Seq)
}

func (b *batch) statePositions(ds []Delivery) (ps positions) {
	for i := range ds {
		d := &ds[i]
		if d.Malformed != nil || b.g.check(d) != nil || b.stream(d.Stream).Policy != State {
			continue
		}
		ps.add(d.Position())
	}
	return ps
}

func (b *batch) readDead(rows pgx.Rows) error {
	if b.dead == nil {
		b.dead = make(map[Position]deadState)
	}
	for rows.Next() {
		var (
			p    Position
			gone bool
		)
		if err := rows.Scan(&p.Stream, &p.Key, &p.Epoch, &p.Seq, &gone); err != nil {
			return err
		}
		p.Kind = outbox.KindData
		b.dead[p] = deadLetter
		if gone {
			b.dead[p] = discarded
		}
	}
	return rows.Err()
}
