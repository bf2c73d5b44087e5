package consumer

import "github.com/fenceline/fenceline/outbox"

// Row is what a consumer remembers of a stream. It is the value of a guard
// row; where a column is null, the field is zero.
type Row struct {
	// Epoch and Seq: all of 1..Seq of this epoch is decided.
	Epoch, Seq int64
	// Token of the last applied event of this epoch. Markers don't set it.
	Token int64
	// Missed are the seqs of this epoch that are never to be applied.
	Missed Missed
	// EndSeq is the seq of the epoch's end record, once it was seen. It can be
	// seen while a hole before it is still open.
	EndSeq int64
	// StartEpoch and StartSeq say where this consumer joined the stream.
	// StartSeq is zero while only markers were seen.
	StartEpoch, StartSeq int64
	// Settled says that something was decided: applied, absorbed or given up.
	Settled bool
	// WaitingEpoch is the lowest epoch above Epoch of which a record waits,
	// stored or not.
	WaitingEpoch int64
	// Blocked says why the stream doesn't go on; empty if nothing waits.
	Blocked Reason
}

// Ended tells whether the guard stands on the end record of its epoch. That
// the end was seen is not enough: a hole before it may still be open.
func (r *Row) Ended() bool { return r.EndSeq != 0 && r.Seq == r.EndSeq }

// Reached tells whether the guard has come to its waiting epoch, which must
// then be found anew: it is the lowest epoch above Epoch that is parked, and
// not null while something of the key could not be stored.
func (r *Row) Reached() bool { return r.WaitingEpoch != 0 && r.WaitingEpoch <= r.Epoch }

// wait notes that a record of epoch waits.
func (r *Row) wait(epoch int64) {
	if epoch > r.Epoch && (r.WaitingEpoch == 0 || epoch < r.WaitingEpoch) {
		r.WaitingEpoch = epoch
	}
}

// block notes why the stream doesn't go on. What an operator must look at is
// not replaced by what may pass by itself.
func (r *Row) block(why Reason) {
	rank := func(w Reason) int {
		switch w {
		case InConflict:
			return 3
		case Failing:
			return 2
		case "":
			return 0
		}
		return 1
	}
	if rank(why) > rank(r.Blocked) {
		r.Blocked = why
	}
}

// enter begins another epoch, of which nothing is decided yet. Where the
// consumer joined stays what it was.
func (r *Row) enter(epoch int64) {
	r.Epoch, r.Seq, r.Token, r.Missed, r.EndSeq = epoch, 0, 0, nil, 0
}

// rebase makes an earlier life the first one. Whatever was seen of the life
// that was taken for the first is parked, or not stored: it waits.
func (r *Row) rebase(epoch int64) {
	was := r.Epoch
	r.enter(epoch)
	r.StartEpoch, r.StartSeq, r.Settled = epoch, 1, false
	r.wait(was)
}

// originRow is the row with which a FromOrigin stream begins.
func originRow(epoch int64) *Row { return &Row{Epoch: epoch, StartEpoch: epoch, StartSeq: 1} }

// apply takes an event in: seq, its token, and the start if there is none yet.
func (r *Row) apply(rec *outbox.Record) {
	if r.StartSeq == 0 {
		r.StartEpoch, r.StartSeq = rec.Epoch, rec.Seq
	}
	r.Seq, r.Token, r.Settled = rec.Seq, rec.Token, true
	r.advance()
}

// pass gives up what lies between the guard and seq.
func (r *Row) pass(seq int64) { r.Missed = r.Missed.Add(r.Seq+1, seq-1) }

// absorb takes a marker in.
func (r *Row) absorb(rec *outbox.Record) {
	if r.StartSeq == 0 {
		r.StartEpoch = rec.Epoch
	}
	r.Missed = r.Missed.Add(max(rec.First(), r.Seq+1), rec.Seq)
	if rec.Kind == outbox.KindEnd {
		r.EndSeq = rec.Seq
	}
	r.Settled = true
	r.advance()
}

// advance moves seq over what was given up right behind it.
func (r *Row) advance() {
	r.Seq = r.Missed.next(r.Seq)
	r.Missed = r.Missed.bound(r.Seq, maxMissed)
}
