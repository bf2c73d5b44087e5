package consumer

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// advanced tells whether nothing of the guard has changed but its position: what
// happens to nearly all of them, and takes a shorter statement.
func (e *entry) advanced() bool {
	if e.row == nil || e.row.Token == 0 || e.parked != e.was.parked || e.bytes != e.was.bytes || e.recheck != e.was.recheck {
		return false
	}
	r, was := e.row, &e.was.row
	return r.EndSeq == was.EndSeq && r.StartEpoch == was.StartEpoch && r.StartSeq == was.StartSeq && r.Settled == was.Settled &&
		r.WaitingEpoch == was.WaitingEpoch && r.Blocked == was.Blocked && slices.Equal(r.Missed, was.Missed)
}

// advances and moves are the arguments of the two statements.
type advances struct {
	tid               []pgtype.TID
	epoch, token, seq []int64
}

func (a *advances) add(e *entry) {
	a.tid, a.epoch = append(a.tid, e.tid), append(a.epoch, e.row.Epoch)
	a.token, a.seq = append(a.token, e.row.Token), append(a.seq, e.row.Seq)
}

type moves struct {
	tid                                                   []pgtype.TID
	epoch, token, seq, end, startEpoch, startSeq, waiting []int64
	missed, blocked                                       []string
	settled, recheck                                      []bool
	parked, bytes                                         []int64
}

func (m *moves) add(e *entry) {
	r := e.row
	if r == nil {
		r = &Row{} // still nothing is known, but something is kept
	}
	m.tid = append(m.tid, e.tid)
	m.epoch, m.token, m.seq = append(m.epoch, r.Epoch), append(m.token, r.Token), append(m.seq, r.Seq)
	m.missed, m.end = append(m.missed, r.Missed.String()), append(m.end, r.EndSeq)
	m.startEpoch, m.startSeq = append(m.startEpoch, r.StartEpoch), append(m.startSeq, r.StartSeq)
	m.settled, m.waiting = append(m.settled, r.Settled), append(m.waiting, r.WaitingEpoch)
	m.blocked = append(m.blocked, string(r.Blocked))
	m.parked, m.bytes, m.recheck = append(m.parked, e.parked), append(m.bytes, e.bytes), append(m.recheck, e.recheck)
}
