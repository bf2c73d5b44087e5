package relay

import (
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// A skip is a verdict on rows of the outbox, written by the operator's command
// (see relay_held_skip) and committed before the relay hears of it. Whoever
// reads a row, now or in a year, in the main flow, in a fork, beside a hold or
// to publish it again, reads the verdict with it. So there is no moment at which
// the event could still be taken for one that is to be published, and each copy
// of the marker is the same.

// judge turns a row into what its verdict makes of it. The last row of a range
// becomes the marker, the others are void: nothing is sent in their place. They
// count as done before the marker does, which a cursor can stand between: the
// marker is still to come then.
//
// An end record of a topic that was retired stays what it is: it says nothing
// but that a life has ended. Of a row that somebody has put there with a
// position that can't be, no marker can be made that a consumer could place:
// nothing is sent for it.
func (r *row) judge(from, to int64, at time.Time) {
	if from == 0 { // no verdict, or none that changes what is sent
		return
	}
	r.bad = ""
	if to != r.Seq || r.Epoch <= 0 || r.Token <= 0 || max(r.Epoch, r.Token, to) > outbox.MaxNumber {
		r.void, r.markerAt = true, to
		return
	}
	r.Record = outbox.Skip(&r.Record, from, at)
}
