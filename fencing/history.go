package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Identity tells one history of a database from another. After a promotion or a
// restore to a point in time the timeline differs, after a dump was loaded on
// another server the system, in a copy within a server the database, after a
// dump was loaded over the same database the table.
type Identity struct {
	System   string `json:"system_identifier"`
	Timeline string `json:"timeline"`
	Database string `json:"database_oid"`
	Table    string `json:"self_oid"`
}

// NewHistory is what a database does that finds itself to be another history
// than that in which its fences were issued.
type NewHistory string

const (
	// Refuse: no token is issued and nothing commits until an operator has
	// spoken. The default.
	Refuse NewHistory = "refuse"
	// Bump: the database begins a new history by itself, as an operator's bump
	// does: every key starts a new epoch, and attempts of before whose receipt
	// is not there are unconfirmable. For clusters that promote their standbys
	// by themselves. It is safe for the order of everything; what it costs is
	// the answer to those attempts.
	Bump NewHistory = "bump"
)

// HistoryError says that the database is another history than that in which its
// fences were issued: it was restored, promoted or copied. It matches
// ErrHistory. An operator decides, as the text says.
type HistoryError struct {
	// Recorded is where the fences were issued, Found where this database is.
	Recorded, Found Identity
	// OnNew is what an operator has told this database to do. With Bump, the
	// next Acquire, Advance or commit of this package begins the new history.
	OnNew NewHistory

	text  string
	cause error
}

// Error names what to do.
func (e *HistoryError) Error() string { return e.text }

// Unwrap gives ErrHistory and the database's error.
func (e *HistoryError) Unwrap() []error { return []error{ErrHistory, e.cause} }

func historyError(pg *pgconn.PgError) error {
	var d struct {
		Recorded Identity   `json:"recorded"`
		Found    Identity   `json:"found"`
		OnNew    NewHistory `json:"on_new"`
	}
	_ = json.Unmarshal([]byte(pg.Detail), &d) // ours; an error leaves it empty
	if d.OnNew == "" {
		d.OnNew = Refuse
	}
	return &HistoryError{d.Recorded, d.Found, d.OnNew, fmt.Sprintf("fencing: %s: %s", pg.Message, pg.Hint), pg}
}

// followed begins the new history after the gate has refused, where the
// database may do so by itself: the gate could not, since what it writes goes
// with its error. Then it asks the gate again, which refuses every position of
// before: with the receipt, if it is there, else as unconfirmable.
//
// It is where every commit of a single gate ends, so it also makes sure that
// what is reported as replayed is replicated.
func (f *Fences) followed(ctx context.Context, g Gate, receipt Receipt, err error) (Receipt, error) {
	if f.follow(ctx, err) {
		refusal := err
		s := session{f: f, gates: []Gate{g}, timeout: f.cfg.GateTimeout}
		receipts, again := s.commit(ctx, func(context.Context, []Tx) error { return refusal })
		receipt, err = receipts[0], again
	}
	if err == nil && receipt.Replayed {
		err = f.replayedWith(ctx, g)
	}
	return receipt, err
}

func (f *Fences) follow(ctx context.Context, err error) bool {
	var h *HistoryError
	if !errors.As(err, &h) || h.OnNew != Bump {
		return false
	}
	// It waits for the commits in progress, as each of them waits for its turn: so a
	// login's statement_timeout is not for it, and whoever comes later finds the
	// history begun or tries himself.
	err = f.queryBehind(ctx, f.cfg.CommitTimeout+silence, []string{patientSQL}, func(rows pgx.Rows) error { rows.Close(); return rows.Err() }, f.sql.follow)
	if err != nil {
		f.cfg.Logger.Error("the database may begin a new history, and could not", "error", err)
		return false
	}
	f.cfg.Logger.Warn("the database was restored, promoted or copied, and has begun a new history", "recorded", h.Recorded, "found", h.Found)
	return true
}
