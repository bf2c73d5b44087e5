package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lettersPage is how many dead letters are handed out at once.
	lettersPage = 100
	// asideMost is how many are passed over at most.
	asideMost = 1000
)

// asideFor is how long a dead letter is passed over while the sink takes others. A
// variable only for tests.
var asideFor = time.Minute

// handing is how dead letters are handed out. A sink that refuses one for ever (it
// is too large for the sink's topic, say) refuses the page that it is on, so the page
// is halved until the letter is alone, which is then passed over: the others must not
// wait for it. That can't be told from a sink that is away until it takes another
// one: then all are tried once more, one at a time.
type handing struct {
	poller
	page   int
	handed []DeadLetter // in the page in hand
	aside  positions    // what is passed over
	since  time.Time    // when the last of these was put aside
	sure   bool         // the sink has taken another one
}

// letters hands dead letters out, in a goroutine of its own: whoever takes them
// may be away for long.
func (p *partition) letters(reading context.Context) error {
	if p.cfg.DeadLetters == nil {
		return nil
	}
	h := handing{poller: poller{partition: p}, page: lettersPage}
	for reading.Err() == nil {
		for more := true; more && reading.Err() == nil; {
			var err error
			if more, err = h.next(); err != nil {
				return err
			}
		}
		select {
		case <-reading.Done():
		case <-p.poked:
		case <-time.After(p.cfg.PollInterval):
		}
	}
	return nil
}

// next hands one page out. more says that another one may be there.
func (h *handing) next() (more bool, err error) {
	var n int
	h.handed = nil
	err = h.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
		n, err = h.guard.forwardDead(ctx, tx, h.page, h.aside, h.sink)
		return err
	})
	var refused *sinkError
	switch {
	case err == nil && len(h.aside.epochs) > 0 && (!h.sure || n < h.page && time.Since(h.since) >= asideFor):
		h.aside, h.page, h.sure = positions{}, 1, n > 0
		return n > 0, nil
	case err == nil && n == h.page:
		h.page = min(2*h.page, lettersPage)
		return true, nil
	case err == nil:
		h.page = lettersPage
		return false, nil
	case !errors.As(err, &refused):
	case len(h.handed) > 1:
		h.page = len(h.handed) / 2
	default:
		if len(h.aside.epochs) >= asideMost {
			h.aside = positions{}
		}
		h.aside.add(h.handed[0].Position)
		h.since = time.Now()
		err = fmt.Errorf("%w (that of %s; the others go before it from now on)", err, h.handed[0].Position)
	}
	return false, h.tell("dead letters were not handed out, trying again", err)
}

// sink is Config.DeadLetters, within a time and with its errors marked.
func (h *handing) sink(ctx context.Context, letters []DeadLetter) (err error) {
	h.handed = letters
	ctx, cancel := context.WithTimeout(ctx, h.cfg.HandlerTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = &sinkError{fmt.Errorf("it panicked: %v", v)}
		}
	}()
	if err := h.cfg.DeadLetters(ctx, letters); err != nil {
		return &sinkError{err}
	}
	return nil
}

// sinkError is Config.DeadLetters' own, which passes: the letters stay in their
// table.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// pokeLetters says that there may be a dead letter.
func (r *runner) pokeLetters() {
	select {
	case r.poked <- struct{}{}:
	default:
	}
}
