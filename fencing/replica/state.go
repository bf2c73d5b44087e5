package replica

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// state is what a server says of itself.
type state struct {
	recovery bool
	system   int64
	database int64
	server   string // tells two servers of one cluster apart
	version  int

	timeline  uint32 // of a primary
	flushed   uint64 // of a primary
	replayed  uint64 // of a standby, read before the rest
	known     uint32 // of a standby: at least this timeline, perhaps a later one
	streams   uint32 // of a standby: the timeline that is received; 0 if it doesn't say
	receiving bool   // of a standby
	lag       time.Duration
}

func (s *state) scan(row pgx.Row) error {
	var timeline, flushed *string
	var known, streams, lag *int64
	if err := row.Scan(&s.recovery, &s.system, &s.database, &s.server, &s.version, &timeline, &flushed, &known, &streams, &s.receiving, &lag); err != nil {
		return err
	}
	if timeline != nil && flushed != nil {
		var err error
		if s.timeline, err = parseTimeline(*timeline); err != nil {
			return err
		}
		if s.flushed, err = parseLSN(*flushed); err != nil {
			return err
		}
	}
	if known != nil {
		s.known = uint32(*known)
	}
	if streams != nil {
		s.streams = uint32(*streams)
	}
	if lag != nil {
		s.lag = time.Duration(*lag) * time.Microsecond
	}
	return nil
}

// position is how far the server has got.
func (s *state) position() Position {
	if s.recovery {
		return Position{System: s.system, Timeline: s.streams, LSN: s.replayed}
	}
	return Position{System: s.system, Timeline: s.timeline, LSN: s.flushed}
}

func refuse(s *server, answer error, reason string, cause error) *RefusedError {
	return &RefusedError{Server: s.name, Answer: answer, Reason: reason, Cause: cause}
}

// check refuses a server that isn't what it is used as.
func (r *Reader) check(s *server, found state) *RefusedError {
	switch {
	case found.system != r.system:
		return refuse(s, ErrOtherCluster, fmt.Sprintf("its system identifier is %d, the primary's is %d", found.system, r.system), nil)
	case found.database != r.database:
		return refuse(s, ErrOtherCluster, "its connection string names another database than the primary's", nil)
	case s.index < 0 && found.recovery:
		return refuse(s, ErrNotPrimary, "pg_is_in_recovery() is true: give the primary's connection string", nil)
	case s.index >= 0 && !found.recovery:
		return refuse(s, ErrNotReplica, "pg_is_in_recovery() is false: it was promoted, or its connection string is the primary's", nil)
	}
	return nil
}

// covers refuses a standby that hasn't, or can't prove that it has, replayed up
// to p. Equal timelines are what makes two log positions comparable. That the
// receiver streams p's timeline proves it: the receiver is told of a new one
// before the first record of it arrives, and doesn't run while log comes from
// elsewhere. The control file's (known) lags behind a switch.
func (r *Reader) covers(s *server, found state, p Position) *RefusedError {
	switch {
	case p.System != found.system:
		return refuse(s, ErrOtherCluster, fmt.Sprintf("its system identifier is %d, the position's is %d", found.system, p.System), nil)
	case found.streams != 0 && found.streams != p.Timeline:
		return refuse(s, ErrTimeline, fmt.Sprintf("it streams timeline %d, the position is on %d", found.streams, p.Timeline), nil)
	case found.known > p.Timeline:
		return refuse(s, ErrTimeline, fmt.Sprintf("it is on timeline %d at least, the position is on %d", found.known, p.Timeline), nil)
	case found.streams == 0 && !found.receiving:
		return refuse(s, ErrTimeline, "it receives from nobody now, so it may follow another timeline unseen", nil)
	case found.streams == 0:
		return refuse(s, ErrTimeline, "the login doesn't see the timeline that is received: grant pg_read_all_stats to it, or ask for a Generation", nil)
	case found.replayed < p.LSN:
		return refuse(s, ErrBehind, fmt.Sprintf("it has replayed up to %s", formatLSN(found.replayed)), nil)
	}
	return nil
}
