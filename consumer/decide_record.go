package consumer

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fenceline/fenceline/outbox"
)

const (
	defaultMaxAhead = 24 * time.Hour

	// maxNumber is the wire's bound, for records that came another way.
	maxNumber = outbox.MaxNumber
	// Stream and key are in the guard's primary key, and a B-tree entry must
	// fit into a third of a page. A Kafka topic has at most 249 bytes, a fence's
	// key at most 512.
	maxStreamBytes = 249
	maxKeyBytes    = 1024
)

// checkRecord finds what the codec lets through, or what a record has that
// didn't come through it, and what no guard could store: such a record would
// otherwise fail its batch again and again, and hold the partition up.
func checkRecord(r *outbox.Record) error {
	bad := func(header, reason string) error { return &outbox.MalformedError{Header: header, Reason: reason} }
	switch {
	case r == nil:
		return bad("record", "is missing")
	case r.Key == "" || len(r.Key) > maxKeyBytes || !storable(r.Key):
		return bad("ce_fencekey", "is empty, longer than 1024 bytes, not UTF-8, or has a NUL in it")
	case r.Stream == "" || len(r.Stream) > maxStreamBytes || !storable(r.Stream):
		return bad("ce_fencestream", "is empty, longer than 249 bytes, not UTF-8, or has a NUL in it")
	case r.Epoch < 1 || r.Epoch > maxNumber:
		return bad("ce_fenceepoch", "is not from 1 to 2^62")
	case r.Token < 1 || r.Token > maxNumber:
		return bad("ce_fencetoken", "is not from 1 to 2^62")
	case r.Seq < 1 || r.Seq > maxNumber:
		return bad("ce_fenceseq", "is not from 1 to 2^62")
	case r.Kind == outbox.KindSkip && (r.From < 1 || r.From > r.Seq):
		return bad("ce_fencefrom", "is not from 1 to ce_fenceseq")
	case r.Kind == outbox.KindSkip && r.Seq-r.From >= outbox.MaxSkip:
		// The one record that moves a guard over what nobody has seen.
		return bad("ce_fencefrom", "is more than 2^30 events before ce_fenceseq")
	case r.Kind != outbox.KindSkip && r.From != 0:
		return bad("ce_fencefrom", "is only for skip markers")
	case r.Kind != "" && r.Kind != outbox.KindData && r.Kind != outbox.KindSkip && r.Kind != outbox.KindEnd:
		return bad("ce_fencekind", "is unknown")
	case r.History < 0 || r.History > r.Epoch:
		return bad("ce_fencehistory", "is above ce_fenceepoch")
	case r.Prev != nil && r.First() != 1:
		return bad("ce_fenceprev", "is only for the first record of a life")
	case r.Prev != nil && (r.Prev.Epoch < 1 || r.Prev.Epoch >= r.Epoch || r.Prev.Seq < 1 || r.Prev.Seq > maxNumber):
		return bad("ce_fenceprev", "does not name a position in an earlier epoch")
	}
	return nil
}

// storable: PostgreSQL's text has neither NULs nor invalid UTF-8.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// absurd tells whether the record's epoch lies too far in the future: epochs
// are clock readings in µs. A guard that believed it would refuse every honest
// event of the key from then on. A zero Now is not compared with.
func absurd(in Input) bool {
	if in.Now.IsZero() {
		return false
	}
	ahead := in.MaxAhead
	if ahead == 0 {
		ahead = defaultMaxAhead
	}
	return in.Record.Epoch > in.Now.Add(ahead).UnixMicro()
}
