package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Retention takes a partition of the outbox when everything in it is published and
// old enough, whichever it is: one that a held stream has events in stays, and those
// behind it go. So what the outbox has of a stream need not be dense, and that an old
// row is there says nothing of younger ones.

// gap are positions of which no partition is left, though there are some in front
// of them and behind: from, and up to, not including, to.
type gap struct{ from, to int64 }

// readGaps finds them. Every row from the position whole on is still there, as far as
// partitions go; plain says that the outbox has none. No partition goes while tx has read the outbox.
func (r *run) readGaps(ctx context.Context, tx pgx.Tx) (whole int64, plain bool, err error) {
	plain = true
	var lo, hi, end int64
	rows, err := tx.Query(ctx, r.sql(`select lo, hi from @schema@.outbox_partitions() order by lo`))
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&lo, &hi}, func() error {
			if !plain && lo > end {
				r.gaps, whole = append(r.gaps, gap{end, lo}), lo
			}
			plain, end = false, hi
			return nil
		})
	}
	if err != nil {
		return 0, false, fmt.Errorf("verify: list the partitions of the outbox: %w", err)
	}
	return whole, plain, nil
}

// dropped: between these two positions a partition was.
func (r *run) dropped(after, before int64) bool {
	return slices.ContainsFunc(r.gaps, func(g gap) bool { return after < g.from && g.from < before })
}

// noRow stands for a row behind the last one.
const noRow = 1<<63 - 1

// droppedAt: a row that would stand in front of the i-th was in a partition that is
// gone, for all that the outbox knows.
func (r *run) droppedAt(p *parts, i int) bool {
	before := int64(noRow)
	if i < len(p.rows) {
		before = p.rows[i].offset
	}
	return i > 0 && r.dropped(p.rows[i-1].offset, before)
}
