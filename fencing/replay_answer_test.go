package fencing_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

// Behind the gate's answer a replay asks for its replication, with a connection
// taken anew. Where there is none then, the commit has happened all the same.
func TestAReplayThatGetsNoConnectionToAskOnIsNotSaidToHaveWrittenNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var left atomic.Int64 // how often the connection is given out
	left.Store(1 << 30)
	pool := w.poolAt(w.producer, 1, func(cfg *pgxpool.Config) {
		cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if left.Add(-1) < 0 {
				return false, errors.New("the server is away")
			}
			return true, nil
		}
	})
	a := w.workerOn(pool, fencing.Config{Holder: "a"})
	pos, ends := a.acquire("k").Position(), a.acquire("l").Position()
	for name, commit := range map[string]func() (fencing.Receipt, error){
		"callback": func() (fencing.Receipt, error) { return a.commit(pos, content("callback", "x")) },
		"batch":    func() (fencing.Receipt, error) { return a.commitBatch(pos, content("batch", "x")) },
		"a gate": func() (fencing.Receipt, error) {
			r, err := a.CommitAll(ctx, []fencing.Gate{{Position: pos, Content: content("gate", "x")}}, writeAll)
			return append(r, fencing.Receipt{})[0], err
		},
		"close": func() (fencing.Receipt, error) {
			c, err := a.Close(ctx, ends)
			return fencing.Receipt{Replayed: c.Replayed}, err
		},
	} {
		_, err := commit()
		w.ok(err)
		left.Store(1) // the gate's
		_, err = commit()
		left.Store(1 << 30)
		if !errors.Is(err, fencing.ErrUnknownOutcome) || strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), "the server is away") {
			t.Errorf("%s: %v", name, err)
		}
		r, err := commit()
		w.ok(err)
		if !r.Replayed {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
