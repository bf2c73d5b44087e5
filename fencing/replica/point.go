package replica

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Point is what a read must at least see: a [Position] or a [Generation].
type Point interface {
	fmt.Stringer
	validate() error
}

// Position is a place in the log of one cluster, on one timeline. Everything
// that was committed before it was taken lies at or before it.
type Position struct {
	// System is the cluster's system identifier.
	System int64
	// Timeline is the timeline that the log was written on.
	Timeline uint32
	// LSN is the place itself.
	LSN uint64
}

// String gives the text that [ParsePosition] reads, such as
// wal:7301234567890123456:1:0/16B3748. It is safe in headers and URLs.
func (p Position) String() string {
	return fmt.Sprintf("wal:%d:%d:%s", p.System, p.Timeline, formatLSN(p.LSN))
}

// MarshalText gives String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is [ParsePosition].
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// ParsePosition reads what String wrote. Anything else is an [*InvalidError].
func ParsePosition(text string) (p Position, err error) {
	invalid := &InvalidError{"position", fmt.Sprintf("is %.80q, want the text that Position.String gives", text)}
	parts := strings.Split(text, ":")
	if len(parts) != 4 || parts[0] != "wal" {
		return Position{}, invalid
	}
	timeline, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil {
		return Position{}, invalid
	}
	p.Timeline = uint32(timeline)
	if p.System, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return Position{}, invalid
	}
	if p.LSN, err = parseLSN(parts[3]); err != nil || p.validate() != nil || p.String() != text {
		return Position{}, invalid
	}
	return p, nil
}

func (p Position) validate() error {
	if p.System <= 0 || p.Timeline == 0 || p.LSN == 0 {
		return &InvalidError{"position", fmt.Sprintf("is %s: take it with At after a commit", p)}
	}
	return nil
}

func formatLSN(lsn uint64) string { return fmt.Sprintf("%X/%X", lsn>>32, lsn&0xFFFFFFFF) }

func parseLSN(text string) (uint64, error) {
	high, low, ok := strings.Cut(text, "/")
	h, err := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !ok || err != nil || err2 != nil {
		return 0, &InvalidError{"log position", fmt.Sprintf("is %.40q, want 0/16B3748 or alike", text)}
	}
	return h<<32 | l, nil
}

// Generation is a holder's place at the fence of a key: which life of the key,
// and which grant within it. It has the fields of fencing.Position, which
// converts to it.
type Generation struct {
	// Key is what the lease is for.
	Key string
	// Epoch is the life of the key.
	Epoch int64
	// Token is the fencing token.
	Token int64
}

// String gives key (epoch, token).
func (g Generation) String() string { return fmt.Sprintf("%s (%d, %d)", g.Key, g.Epoch, g.Token) }

func (g Generation) validate() error {
	if g.Key == "" || g.Epoch < 1 || g.Token < 1 {
		return &InvalidError{"generation", fmt.Sprintf("is %s: give the position that a lease was granted with", g)}
	}
	return nil
}

// before tells whether g, of the same key, is older than o.
func (g Generation) before(o Generation) bool {
	return g.Epoch < o.Epoch || g.Epoch == o.Epoch && g.Token < o.Token
}

// Querier runs one query; *pgx.Conn and *pgxpool.Pool are some.
type Querier interface {
	// QueryRow is as in pgx.
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// At takes the position of now on the primary: whoever reads at it sees every
// commit that was acknowledged before At was called. Use the session that
// committed, where there is one to use (fencing's Enter), else a connection of the
// same pool: another may lead to another server. Never take it inside the
// transaction, which has not committed yet: that is an [*InvalidError], as is a
// session with synchronous_commit off, whose commits are acknowledged before they
// are in the log. On a standby the error matches [ErrNotPrimary].
func At(ctx context.Context, q Querier) (Position, error) {
	var (
		p                 Position
		recovery, writing bool
		timeline, lsn     *string
		synchronous       string
	)
	if err := q.QueryRow(ctx, sqlAt).Scan(&recovery, &p.System, &timeline, &lsn, &synchronous, &writing); err != nil {
		return Position{}, fmt.Errorf("replica: take a position: %w", err)
	}
	switch {
	case recovery || timeline == nil || lsn == nil:
		return Position{}, &RefusedError{Server: "the session", Answer: ErrNotPrimary, Reason: "a position is taken where the commit was made"}
	case writing:
		return Position{}, &InvalidError{"session", "has a transaction that wrote and has not committed: take the position after COMMIT"}
	case synchronous == "off":
		return Position{}, &InvalidError{"session", "has synchronous_commit off, so its last commits may not be in the log yet: set it to on, or wait for a Generation"}
	}
	var err error
	if p.Timeline, err = parseTimeline(*timeline); err == nil {
		p.LSN, err = parseLSN(*lsn)
	}
	return p, err
}

func parseTimeline(hex string) (uint32, error) {
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return 0, &InvalidError{"timeline", fmt.Sprintf("is %.40q", hex)}
	}
	return uint32(n), nil
}
