package fencing_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fenceline/fenceline/fencing"
)

// lifeModel is what the database should say of one key, kept as a person would:
// without locks, receipts by name, epochs by their place in the order.
type lifeModel struct {
	exists  bool
	epoch   int64 // the real one, once it is known
	token   int64
	closed  bool
	held    bool                // somebody's lease has not ended
	floor   fencing.Position    // receipts at or below are gone
	done    map[attempt]string  // content of each commit that has happened and is remembered
	passed  []fencing.Position  // what the work list says: nothing commits at or below
	stream  []string            // every record ever, in order
	last    map[string]position // of the stream, as remembered
	public  int                 // how many records are published
	highest int64               // of all epochs ever
}

type attempt struct {
	epoch, token int64
	step         string
}

type position struct{ epoch, seq int64 }

const modelStream = "results"

func before(a, b fencing.Position) bool {
	return a.Epoch < b.Epoch || (a.Epoch == b.Epoch && a.Token < b.Token)
}

// answer is what an attempt under a position and step gets.
func (m *lifeModel) answer(pos fencing.Position, step, body string) error {
	if was, ok := m.done[attempt{pos.Epoch, pos.Token, step}]; ok {
		if was == body {
			return fencing.ErrReplayed
		}
		return fencing.ErrConflict
	}
	now := fencing.Position{Epoch: m.epoch, Token: m.token}
	switch {
	case m.exists && !m.closed && pos.Epoch == m.epoch && pos.Token == m.token:
		return nil
	case !m.exists, !before(m.floor, pos), before(now, pos):
		return fencing.ErrUnconfirmable
	case m.closed && pos.Epoch == m.epoch:
		return fencing.ErrClosed
	}
	return fencing.ErrStale
}

// record appends a record to the one stream that the model has.
func (m *lifeModel) record(kind string, pos fencing.Position) {
	was, remembered := m.last[modelStream]
	now := position{pos.Epoch, was.seq + 1}
	prev := ""
	if !remembered || was.epoch != pos.Epoch {
		now.seq = 1
		if remembered {
			prev = fmt.Sprintf(" after %d/%d", was.epoch, was.seq)
		}
	}
	m.last[modelStream] = now
	m.stream = append(m.stream, fmt.Sprintf("%s (%d, %d, %d)%s", kind, pos.Epoch, pos.Token, now.seq, prev))
}

func (m *lifeModel) commit(pos fencing.Position, step, body string) {
	m.done[attempt{pos.Epoch, pos.Token, step}] = body
	m.record("data", pos)
}

func (m *lifeModel) begin(epoch int64) {
	m.exists, m.closed, m.held = true, false, false
	m.epoch, m.token = epoch, 0
	m.highest = max(m.highest, epoch)
}

// sweep is that of a moment at which every window is over.
func (m *lifeModel) sweep() {
	for _, p := range m.passed {
		var newest fencing.Position
		for a := range m.done {
			if q := (fencing.Position{Epoch: a.epoch, Token: a.token}); !before(p, q) && before(newest, q) {
				newest = q
			}
		}
		if before(m.floor, newest) {
			m.floor = newest
		}
	}
	m.passed = nil
	for a := range m.done {
		if !before(m.floor, fencing.Position{Epoch: a.epoch, Token: a.token}) {
			delete(m.done, a)
		}
	}
	if m.closed {
		m.passed = []fencing.Position{{Epoch: m.epoch, Token: m.token}} // until the tombstone goes
		if m.public == len(m.stream) {
			*m = lifeModel{done: m.done, last: map[string]position{}, stream: m.stream, public: m.public, highest: m.highest}
		}
	}
}

const closeStep = "fenceline:close"

func TestAnyLifeOfAKeyIsAsThePlainModelHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	// As many runs as fit, but until every answer has been met; a run that has
	// failed is made smaller however long it takes.
	runs, failed, deadline := 0, false, time.Now().Add(10*time.Second)
	if os.Getenv("FENCELINE_LONG") != "" {
		deadline = deadline.Add(time.Hour)
	}
	counts := map[string]int{}
	missing := func() []string {
		return slices.DeleteFunc([]string{
			"acquire <nil>", "acquire " + fencing.ErrHeld.Error(), "acquire " + fencing.ErrClosed.Error(),
			"commit <nil>", "commit " + fencing.ErrReplayed.Error(), "commit " + fencing.ErrConflict.Error(), "commit " + fencing.ErrStale.Error(),
			"commit " + fencing.ErrClosed.Error(), "commit " + fencing.ErrUnconfirmable.Error(),
			"close <nil>", "close " + fencing.ErrReplayed.Error(), "close " + fencing.ErrStale.Error(), "close " + fencing.ErrUnconfirmable.Error(),
		}, func(want string) bool { return counts[want] > 0 })
	}
	check := func(r *rapid.T) {
		if !failed && time.Now().After(deadline) && len(missing()) == 0 {
			return
		}
		defer func() { failed = failed || r.Failed() }()
		runs++
		key := fmt.Sprint("k", runs)
		m := &lifeModel{done: map[attempt]string{}, last: map[string]position{}}
		w.exec("delete from fenceline.relay_checkpoint")
		var known []fencing.Position // every position that anybody was ever given
		some := func(r *rapid.T) (pos fencing.Position, ok bool) {
			if len(known) == 0 {
				return pos, false
			}
			// The newest ones more often: otherwise most answers are stale.
			i := len(known) - 1 - min(rapid.IntRange(0, len(known)-1).Draw(r, "back"), rapid.IntRange(0, len(known)-1).Draw(r, "back"))
			return known[i], true
		}
		is := func(what string, got, want error) {
			if (want == nil) != (got == nil) || !errors.Is(got, want) {
				r.Fatalf("%s: %v, want %v", what, got, want)
			}
			counts[fmt.Sprint(what, " ", want)]++
		}
		r.Repeat(map[string]func(*rapid.T){
			"acquire": func(r *rapid.T) {
				lease, err := a.Acquire(ctx, key, long)
				switch {
				case m.exists && m.held:
					is("acquire", err, fencing.ErrHeld)
				case m.exists && m.closed:
					is("acquire", err, fencing.ErrClosed)
				default:
					is("acquire", err, nil)
					pos := lease.Position()
					if !m.exists {
						if pos.Epoch <= m.highest {
							r.Fatalf("epoch %d comes after %d", pos.Epoch, m.highest)
						}
						m.begin(pos.Epoch)
						m.floor = fencing.Position{Epoch: pos.Epoch - 1, Token: 1 << 62}
					}
					m.token++
					m.held = true
					m.passed = append(m.passed, fencing.Position{Epoch: m.epoch, Token: m.token - 1})
					if pos.Epoch != m.epoch || pos.Token != m.token {
						r.Fatalf("acquired %v, want (%d, %d)", pos, m.epoch, m.token)
					}
					known = append(known, pos)
				}
			},
			"expire": func(*rapid.T) {
				w.exec("update fenceline.lease set expires_at = clock_timestamp() where key = $1 and expires_at > clock_timestamp()", key)
				m.held = false
			},
			"commit or retry": func(r *rapid.T) {
				pos, ok := some(r)
				if !ok {
					return
				}
				step, body := rapid.SampledFrom([]string{"1", "2", "3"}).Draw(r, "step"), rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(r, "body")
				want := m.answer(pos, step, body)
				receipt, err := a.commit(pos, content(step, body))
				if err == nil && receipt.Replayed {
					err = fencing.ErrReplayed
				}
				is("commit", err, want)
				if want == nil {
					m.commit(pos, step, body)
				}
			},
			"commit ahead": func(r *rapid.T) {
				pos, ok := some(r)
				if !ok {
					return
				}
				pos.Token += 10
				_, err := a.commit(pos, content("1", "x"))
				is("commit ahead", err, m.answer(pos, "1", "x"))
			},
			"close": func(r *rapid.T) {
				pos, ok := some(r)
				if !ok {
					return
				}
				want := m.answer(pos, closeStep, "")
				if m.exists && m.closed && pos.Epoch == m.epoch && pos.Token == m.token {
					want = fencing.ErrReplayed // the tombstone says it, with or without the receipt
				}
				c, err := a.Close(ctx, pos)
				if err == nil && c.Replayed {
					err = fencing.ErrReplayed
				}
				is("close", err, want)
				if want == nil {
					m.closed, m.held = true, false
					m.done[attempt{pos.Epoch, pos.Token, closeStep}] = ""
					if _, remembered := m.last[modelStream]; remembered {
						m.record("end", pos)
					}
					m.passed = append(m.passed, pos)
				}
			},
			"open": func(r *rapid.T) {
				epoch, err := a.Open(ctx, key)
				is("open", err, nil)
				switch {
				case m.exists && !m.closed:
					if epoch != m.epoch {
						r.Fatalf("an open key was opened as %d, it is %d", epoch, m.epoch)
					}
					return
				case epoch <= m.highest:
					r.Fatalf("epoch %d comes after %d", epoch, m.highest)
				case !m.exists:
					m.floor = fencing.Position{Epoch: epoch - 1, Token: 1 << 62}
				}
				m.begin(epoch)
				m.passed = append(m.passed, fencing.Position{Epoch: epoch})
			},
			"publish": func(*rapid.T) {
				w.published()
				m.public = len(m.stream)
			},
			"sweep": func(*rapid.T) {
				op.sweep(soon)
				m.sweep()
			},
			"sweep while the windows are open": func(r *rapid.T) {
				if rep := op.sweep(fencing.SweepConfig{}); rep.Receipts+rep.Tombstones+rep.Turns > 0 {
					r.Fatalf("swept %+v", rep)
				}
			},
			"": func(r *rapid.T) {
				rows := w.history(key)
				if !slices.Equal(rows, m.stream) {
					r.Fatalf("the stream is\n%q\nwant\n%q", rows, m.stream)
				}
				if got := value[int](w, "select count(*) from fenceline.receipt where key = $1", key); got != len(m.done) {
					r.Fatalf("%d receipts, want %d", got, len(m.done))
				}
				state := value[string](w, "select coalesce((select format('(%s, %s) %s', epoch, max_issued_token, closed_at is not null) from fenceline.fence where key = $1), 'none')", key)
				want := "none"
				if m.exists {
					closed := "f"
					if m.closed {
						closed = "t"
					}
					want = fmt.Sprintf("(%d, %d) %s", m.epoch, m.token, closed)
				}
				if state != want {
					r.Fatalf("the fence is %s, want %s", state, want)
				}
			},
		})
	}
	// Which answers a round of runs meets is chance: another one is cheap.
	for round := 0; round < 5 && !failed && (round == 0 || len(missing()) > 0); round++ {
		rapid.Check(t, check)
	}
	if !failed {
		for _, want := range missing() {
			t.Errorf("no run had: %s", want)
		}
	}
}

// history is all records of a key's stream, as the model writes them.
func (w *world) history(key string) (records []string) {
	w.Helper()
	for _, r := range w.stream(key, modelStream) {
		s := fmt.Sprintf("%s (%d, %d, %d)", r.Kind, r.Epoch, r.Token, r.Seq)
		if r.PrevEpoch != nil {
			s += fmt.Sprintf(" after %d/%d", *r.PrevEpoch, *r.PrevSeq)
		}
		records = append(records, s)
	}
	return records
}
