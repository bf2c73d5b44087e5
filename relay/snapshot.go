package relay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nothingSeen is a snapshot in which no transaction of a user is visible: 3 is
// the first transaction id of a new cluster.
const nothingSeen = "3:3:"

// snapshot is a pg_snapshot: which transactions count as ended. The zero value
// is no snapshot.
type snapshot struct {
	text string   // as PostgreSQL writes it: xmin:xmax:xip,xip,…
	xmax uint64   // every id from here on was not yet given out, or its transaction still ran
	xip  []uint64 // ids below xmax whose transactions were running, ascending; top-level ones only
}

func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{text: text}
	parts := strings.SplitN(text, ":", 3)
	if len(parts) != 3 {
		return s, fmt.Errorf("relay: %q is not a snapshot", text)
	}
	var err error
	if s.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return s, fmt.Errorf("relay: %q is not a snapshot: %w", text, err)
	}
	if parts[2] == "" {
		return s, nil
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil {
			return s, fmt.Errorf("relay: %q is not a snapshot: %w", text, err)
		}
		s.xip = append(s.xip, n)
	}
	return s, nil
}

func (s snapshot) zero() bool { return s.text == "" }

// running reports whether the transaction still ran, or had not begun.
func (s snapshot) running(xid uint64) bool {
	if xid >= s.xmax {
		return true
	}
	_, found := slices.BinarySearch(s.xip, xid)
	return found
}

// endedBy gives the transactions that ran in s and had ended in later, by
// commit or rollback: the stragglers of the window between the two.
func (s snapshot) endedBy(later snapshot) []uint64 {
	ended := []uint64{} // not nil: it becomes an empty array, not null
	for _, x := range s.xip {
		if !later.running(x) {
			ended = append(ended, x)
		}
	}
	return ended
}
