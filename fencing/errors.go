package fencing

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// The answers of a commit that are not a receipt. Match them with errors.Is;
// the error itself is a [*RefusedError] with the evidence.
var (
	// ErrStale: the fence has moved past the presented token. Somebody else
	// holds the key, or did since. Nothing was written, and nothing can be
	// under this token: stop, and acquire again.
	ErrStale = errors.New("stale: the fence has moved past this token")
	// ErrConflict: this key, epoch, token and step have committed before, with
	// other content. Nothing was written. Two different results were given the
	// same name: use another step, or retry with the same bytes.
	ErrConflict = errors.New("conflict: the same step has committed with other content")
	// ErrUnconfirmable: the database cannot say what became of the attempt:
	// its receipt was swept, or was lost with a history that an operator has
	// ended. Nothing was written now.
	ErrUnconfirmable = errors.New("unconfirmable: nothing can say what became of this attempt")
	// ErrClosed: this life of the key has ended.
	ErrClosed = errors.New("closed: this life of the key has ended")
	// ErrReplayed is returned by [Fences.Enter] alone: the attempt has
	// committed before. [Fences.Commit] answers this with a receipt.
	ErrReplayed = errors.New("replayed: this attempt has committed before")
)

// What else can go wrong.
var (
	// ErrUnknownOutcome: the answer to COMMIT did not arrive. The commit may or
	// may not have happened: call Commit again with the same position, step and
	// content, and the receipt answers.
	ErrUnknownOutcome = errors.New("unknown outcome: retry with the same token, step and content")
	// ErrNotReplicated comes together with a receipt: the commit has happened on
	// the primary, but the wait for its synchronous standby was cut short. It
	// is lost if that primary is. Acquire gives no lease with it, and Rotate goes on
	// asking.
	ErrNotReplicated = errors.New("committed locally, but perhaps not replicated")
	// ErrLeaseLost is the cause with which a lease's context ends when the
	// trust in the lease is over, and what its Commit returns then.
	ErrLeaseLost = errors.New("fencing: lease lost")
	// ErrReleased is the cause with which a lease's context ends after Release.
	ErrReleased = errors.New("fencing: lease released")
	// ErrHeld: somebody else holds the lease. The error is a [*HeldError].
	ErrHeld = errors.New("held by somebody else")
	// ErrBlocked: a commit in progress keeps the fence from being advanced. The
	// error is a [*BlockedError].
	ErrBlocked = errors.New("blocked by a commit in progress")
	// ErrHistory: the database was restored, promoted or copied since the
	// fences were issued. No token is issued and nothing commits until an
	// operator has confirmed it. The error is a [*HistoryError].
	ErrHistory = errors.New("not the history that the fences were issued in")
	// ErrOwner: the key belongs to another login.
	ErrOwner = errors.New("the key belongs to another login")
	// ErrIsolation: the transaction is not READ COMMITTED.
	ErrIsolation = errors.New("the gate needs a READ COMMITTED transaction")
	// ErrMisuse: the caller contradicts itself: the same step twice in one
	// transaction, a token moved after the gate, a transaction ended by its
	// callback, a callback that waits for its own commit.
	ErrMisuse = errors.New("misuse")
	// ErrNoPass: the transaction has not passed the gate of the key.
	ErrNoPass = errors.New("the transaction has not passed the gate")
	// ErrUnknownKey is returned by [Operator] alone: the key has neither fence nor
	// lease. It was never acquired, opened or advanced, or it was closed and swept;
	// or its name is another one.
	ErrUnknownKey = errors.New("unknown key: it was never acquired or opened, or it was closed and swept")
	// ErrInvalid: an argument is out of range. The error is an [*InvalidError].
	ErrInvalid = errors.New("invalid argument")
	// ErrRolledBack: the callback swallowed an error of a statement and
	// returned nil. PostgreSQL then rolls back at COMMIT: nothing was written.
	ErrRolledBack = errors.New("rolled back: a statement in the callback had failed")
	// ErrGateTimeout: the session was idle behind the gate for longer than the
	// gate's timeout and the database has ended it. Nothing was written.
	ErrGateTimeout = errors.New("the holder was idle behind the gate for too long, its session was ended")
)

// Evidence is what the database knew when it refused.
type Evidence struct {
	// Key, Epoch, Token and Step are what was presented.
	Key          string
	Epoch, Token int64
	Step         string
	// CurrentEpoch and CurrentToken are where the fence is. Zero if there is none.
	CurrentEpoch, CurrentToken int64
	// CommittedAt, Result: of the receipt, if there is one.
	CommittedAt time.Time
	Result      []byte
	// Digest is that of the receipt, PresentedDigest that of this attempt.
	Digest, PresentedDigest []byte
	// Algorithm is the one of the receipt's Digest; PresentedDigest is made with
	// it, too, where this version knows it.
	Algorithm Algorithm
	// ClosedAt is when this life of the key ended.
	ClosedAt time.Time
	// Reason says more for ErrUnconfirmable.
	Reason string
}

// RefusedError is a refusal by the fence, of a commit, an acquire or an
// advance. It matches ErrStale, ErrConflict,
// ErrUnconfirmable, ErrClosed or ErrReplayed.
type RefusedError struct {
	// Answer is the sentinel that the error matches.
	Answer error
	// Evidence is what the answer rests on.
	Evidence Evidence
}

// Error names the key, what was presented and where the fence is.
func (e *RefusedError) Error() string {
	v := e.Evidence
	s := fmt.Sprintf("fencing: key %q", v.Key)
	switch {
	case v.Epoch != 0:
		s += fmt.Sprintf(" under (%d, %d)", v.Epoch, v.Token)
	case v.Token != 0: // an outside token comes without an epoch
		s += fmt.Sprintf(" under token %d", v.Token)
	}
	if v.Step != "" {
		s += fmt.Sprintf(" step %q", v.Step)
	}
	s += fmt.Sprintf(": %v", e.Answer)
	switch {
	case errors.Is(e.Answer, ErrConflict):
		s += fmt.Sprintf(" (at %s, digest %s, now %s)", v.CommittedAt.Format(time.RFC3339), short(v.Digest), short(v.PresentedDigest))
	case errors.Is(e.Answer, ErrReplayed):
		s += fmt.Sprintf(" (at %s)", v.CommittedAt.Format(time.RFC3339))
	case v.CurrentEpoch != 0:
		s += fmt.Sprintf(" (the fence is at (%d, %d))", v.CurrentEpoch, v.CurrentToken)
	}
	if v.Reason != "" {
		s += ": " + v.Reason
	}
	return s
}

// Unwrap gives the answer.
func (e *RefusedError) Unwrap() error { return e.Answer }

func short(digest []byte) string {
	s := hex.EncodeToString(digest)
	return s[:min(len(s), 8)]
}

// HeldError says who holds a lease, or for whom it is kept, and until when; not
// under which token, which only its holder has use for.
type HeldError struct {
	Key, Holder string
	// ExpiresAt is on the database's clock.
	ExpiresAt time.Time
	// Remaining is the time until then, on the database's clock, when it answered.
	Remaining time.Duration
	// Reserved: the lease is free, but was handed over to Holder, or was
	// released while Holder was first in line, who has not come for it yet.
	Reserved bool
}

// Error implements error.
func (e *HeldError) Error() string {
	if e.Reserved {
		return fmt.Sprintf("fencing: lease %q is kept for %q for another %v", e.Key, e.Holder, e.Remaining.Round(time.Millisecond))
	}
	return fmt.Sprintf("fencing: lease %q is held by %q for another %v", e.Key, e.Holder, e.Remaining.Round(time.Millisecond))
}

// Unwrap gives ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// BlockedError says which backends' commits kept the fence.
type BlockedError struct {
	Key string
	// PIDs are the backends that held the fence's lock; none where it was a prepared
	// transaction, or has ended meanwhile.
	PIDs []int32
	// Own is set, and PIDs empty, where it is commits of the same [Lease] that
	// were waited for, and none of the database's waits: for so long, which is
	// the gate's timeout.
	Own time.Duration
}

// Error implements error.
func (e *BlockedError) Error() string {
	if e.Own != 0 {
		return fmt.Sprintf("fencing: fence of %q: %v of the same lease, which did not end within its gate timeout of %v: try again, but not from the callback of that commit, which would wait for itself", e.Key, ErrBlocked, e.Own)
	}
	if len(e.PIDs) == 0 {
		return fmt.Sprintf("fencing: fence of %q: %v, of a backend that has gone meanwhile, or of a prepared transaction, which no timeout ends: try again, and look at pg_prepared_xacts", e.Key, ErrBlocked)
	}
	return fmt.Sprintf("fencing: fence of %q: %v (backend pid %v): try again; the gate's timeout ends it when it idles, or stays in one statement, for so long, but not while it goes from statement to statement: one that doesn't end by itself is ended by pg_terminate_backend", e.Key, ErrBlocked, e.PIDs)
}

// Unwrap gives ErrBlocked.
func (e *BlockedError) Unwrap() error { return ErrBlocked }

// InvalidError says which argument is out of range and why.
type InvalidError struct {
	Field, Reason string
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("fencing: %s %s", e.Field, e.Reason) }

// Unwrap gives ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// translate turns the SQLSTATEs of migrations/producer into the errors above;
// any other error is returned as it is.
func translate(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	refused := func(answer error) error {
		return &RefusedError{Answer: answer, Evidence: parseEvidence(pg.Detail)}
	}
	wrapped := func(sentinel error) error {
		s := fmt.Sprintf("fencing: %s", pg.Message)
		if pg.Hint != "" {
			s += ": " + pg.Hint
		}
		return &wrappedError{s, sentinel, err}
	}
	switch pg.Code {
	case "FL001":
		return refused(ErrReplayed)
	case "FL002":
		return refused(ErrConflict)
	case "FL003":
		return refused(ErrStale)
	case "FL004":
		return refused(ErrUnconfirmable)
	case "FL005":
		return refused(ErrClosed)
	case "FL006":
		return historyError(pg)
	case "FL007":
		return wrapped(ErrNoPass)
	case "FL008":
		return wrapped(ErrIsolation)
	case "FL009":
		return wrapped(ErrMisuse)
	case "FL010":
		var d struct {
			Key       string  `json:"key"`
			BlockedBy []int32 `json:"blocked_by"`
		}
		_ = json.Unmarshal([]byte(pg.Detail), &d) // ours; an error leaves it empty
		// A prepared transaction has a lock, and no backend.
		return &BlockedError{Key: d.Key, PIDs: slices.DeleteFunc(d.BlockedBy, func(pid int32) bool { return pid == 0 })}
	case "FL011":
		return &wrappedError{"fencing: " + pg.Message, ErrInvalid, err}
	case "FL012":
		return wrapped(ErrOwner)
	case "25P03": // idle_in_transaction_session_timeout: only ever while idle, so never in a COMMIT
		return &wrappedError{fmt.Sprintf("fencing: %v: nothing was written; a retry with the same token tells where the fence is", ErrGateTimeout), ErrGateTimeout, err}
	}
	return err
}

// gateRefusal is the refusal of a commit by its gate; nil for any other error,
// also of a statement that was refused elsewhere.
func gateRefusal(err error) *RefusedError {
	var r *RefusedError
	if errors.As(err, new(*StatementError)) || !errors.As(err, &r) {
		return nil
	}
	return r
}

// typed gives an error that a callback has returned the types that translate
// knows, where a statement of the callback met one of our functions or triggers:
// a write to a protected table, say. It goes on to be what it was, with its text
// and everything that it wraps. The database's word is also found in an error
// that says only that the connection is gone: it ended the idle session with a
// FATAL error before it closed it.
func typed(err error) error {
	if errors.As(err, new(*wrappedError)) || errors.As(err, new(*RefusedError)) || errors.As(err, new(*HistoryError)) || errors.As(err, new(*BlockedError)) {
		return err // of a call of this package, which has done it
	}
	t := translate(err)
	if t == err || errors.Is(t, ErrGateTimeout) {
		return t
	}
	text := err.Error()
	if _, bare := err.(*pgconn.PgError); bare { //nolint:errorlint // where the caller has added nothing
		text = t.Error()
	}
	return &wrappedError{text, t, err}
}

// wrappedError has a text of its own and matches both a sentinel and the
// database's error.
type wrappedError struct {
	text     string
	sentinel error
	cause    error
}

func (e *wrappedError) Error() string { return e.text }
func (e *wrappedError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.sentinel}
	}
	return []error{e.sentinel, e.cause}
}

// fatal says that the server ended the session with this error, or that the error
// is not the server's: a pooler that has lost its server says so in an error of its
// own, in the place of an answer to what may have happened.
func fatal(pg *pgconn.PgError) bool { return pgsession.Ends(pg) || foreign(pg) }

// foreign says that an error is about the connection and not the server's own: each
// of those names the routine that it comes from. (Of other errors it is believed that
// somebody between has passed them on, and left that out.)
func foreign(pg *pgconn.PgError) bool {
	if pg.Routine != "" {
		return false
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "", "08", "57", "58", "XX": // none, connection, operator intervention, system, internal
		return true
	}
	return false
}

func parseEvidence(detail string) Evidence {
	var d struct {
		Key             string    `json:"key"`
		Epoch           int64     `json:"epoch"`
		Token           int64     `json:"token"`
		Step            string    `json:"step"`
		CurrentEpoch    int64     `json:"current_epoch"`
		CurrentToken    int64     `json:"current_token"`
		CommittedAt     time.Time `json:"committed_at"`
		ClosedAt        time.Time `json:"closed_at"`
		Digest          string    `json:"digest"`
		PresentedDigest string    `json:"presented_digest"`
		Algo            string    `json:"algo"`
		Result          *string   `json:"result"`
		Reason          string    `json:"reason"`
	}
	_ = json.Unmarshal([]byte(detail), &d) // ours; an error leaves it empty, the answer stands
	e := Evidence{
		Key: d.Key, Epoch: d.Epoch, Token: d.Token, Step: d.Step, CurrentEpoch: d.CurrentEpoch, CurrentToken: d.CurrentToken,
		CommittedAt: d.CommittedAt, ClosedAt: d.ClosedAt, Reason: d.Reason, Algorithm: Algorithm(d.Algo),
	}
	e.Digest, _ = hex.DecodeString(d.Digest)
	e.PresentedDigest, _ = hex.DecodeString(d.PresentedDigest)
	if d.Result != nil {
		// PostgreSQL breaks base64 into lines of 76 characters, which the
		// decoder passes over.
		e.Result, _ = base64.StdEncoding.DecodeString(*d.Result)
	}
	return e
}
