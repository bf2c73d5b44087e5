package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
)

// It is the producer that README.md shows: one that asked again for ever would hide
// from its operator what he alone can mend.
func TestAWorkerWaitsOnlyForWhatWaitingMends(t *testing.T) {
	w := &worker{}
	for name, c := range map[string]struct {
		err   error
		waits bool
	}{
		"nothing":               {nil, true},
		"a lost connection":     {io.ErrUnexpectedEOF, true},
		"a shutdown":            {&pgconn.PgError{Code: "57P01"}, true},
		"too many connections":  {&pgconn.PgError{Code: "53300"}, true},
		"a deadlock":            {&pgconn.PgError{Code: "40P01"}, true},
		"no code":               {&pgconn.PgError{}, true},
		"another login's key":   {&fencing.RefusedError{Answer: fencing.ErrOwner}, false},
		"a closed key":          {&fencing.RefusedError{Answer: fencing.ErrClosed}, false},
		"a restored database":   {&fencing.RefusedError{Answer: fencing.ErrHistory}, false},
		"other content":         {&fencing.RefusedError{Answer: fencing.ErrConflict}, false},
		"an invalid key":        {fencing.ErrInvalid, false},
		"a missing right":       {&pgconn.PgError{Code: "42501"}, false},
		"a missing table":       {&pgconn.PgError{Code: "42P01"}, false},
		"a wrong password":      {&pgconn.PgError{Code: "28P01"}, false},
		"a database that isn't": {&pgconn.PgError{Code: "3D000"}, false},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("commit: %w", err)
		}
		got := w.passing(t.Context(), err)
		if c.waits && got != nil || !c.waits && !errors.Is(got, c.err) {
			t.Errorf("%s: %v", name, got)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := w.passing(ctx, io.ErrUnexpectedEOF); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}
