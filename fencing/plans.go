package fencing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// plansKey is where a connection keeps what its pipes have prepared.
const plansKey = "fenceline.plans"

// plans are the statements that are prepared on a connection for its pipes: pgx
// has a cache of its own, which it lets nobody use. They last as long as the
// connection does.
type plans struct {
	byText map[string]*plan
	turn   int
}

type plan struct {
	*pgconn.StatementDescription      // nil: the server refuses it, and pgx is to ask instead
	used                         int  // the last turn
	stale                        bool // to be prepared anew
}

// refusedFor is for how many turns a text that the server has refused isn't prepared:
// its table may be there then, or the lock on it gone.
const refusedFor = 64

func plansOf(conn *pgconn.PgConn) *plans {
	all, ok := conn.CustomData()[plansKey].(*plans)
	if !ok {
		all = &plans{byText: map[string]*plan{}}
		conn.CustomData()[plansKey] = all
	}
	return all
}

// outdated has statements prepared anew, behind a transaction that was refused: all
// that are kept where one is not there any more (26000, somebody has discarded it)
// or does not go with its tables and types any more, which PostgreSQL tells in many
// ways: the parameters' types are those of the time at which it was prepared. Then
// the transaction may go again. Of any other error only the statement that has
// failed is prepared anew, since the next one might.
func (p *pipe) outdated(pk *packet, o outcome) (again bool) {
	all := plansOf(p.conn.PgConn())
	switch code(o.err) {
	case "26000", "0A000", "42804", "42883", "42704", "XX000":
		for _, known := range all.byText {
			known.stale = true
		}
		return true
	}
	if o.at > gateAt && o.at < len(pk.texts) {
		if known := all.byText[pk.texts[o.at]]; known != nil {
			known.stale = true
		}
	}
	return false
}

// plans are the prepared statements of texts; false while one of them is not.
// What is not there yet is prepared when nothing is under way.
func (p *pipe) plans(texts []string) ([]*pgconn.StatementDescription, bool) {
	all := plansOf(p.conn.PgConn())
	all.turn++
	var missing []string
	out := make([]*pgconn.StatementDescription, len(texts))
	for i, text := range texts {
		switch known := all.byText[text]; {
		case known == nil, known.stale, known.StatementDescription == nil && all.turn-known.used > refusedFor:
			if !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		case known.StatementDescription == nil:
			return nil, false
		default:
			known.used, out[i] = all.turn, known.StatementDescription
		}
	}
	if len(missing) == 0 {
		return out, true
	}
	distinct := map[string]struct{}{}
	for _, text := range texts {
		distinct[text] = struct{}{}
	}
	if p.busy() || len(distinct) > textsMost {
		return nil, false
	}
	p.pause()
	if !p.prepare(all, missing) {
		return nil, false
	}
	for i, text := range texts {
		out[i] = all.byText[text].StatementDescription
	}
	return out, true
}

// prepare prepares texts in one round trip, and lets go of what was not used for
// longest where there would be too many. It says whether all could be prepared.
func (p *pipe) prepare(all *plans, texts []string) bool {
	ctx, cancel := context.WithTimeout(p.ctx, p.f.cfg.CommitTimeout)
	defer cancel()
	line := p.conn.PgConn().StartPipeline(ctx)
	for _, text := range all.leave(len(texts)) {
		if gone := all.byText[text]; gone.StatementDescription != nil {
			line.SendDeallocate(gone.Name)
		}
		delete(all.byText, text)
	}
	for _, text := range texts {
		line.SendDeallocate(planName(text)) // which may be there, and stale
		line.SendPrepare(planName(text), text, nil)
	}
	err := line.Sync()
	for err == nil && len(texts) > 0 {
		var results any
		switch results, err = line.GetResults(); results := results.(type) {
		case *pgconn.StatementDescription:
			// The answer names nothing; they come in the order of asking.
			results.Name, results.SQL = planName(texts[0]), texts[0]
			all.byText[texts[0]] = &plan{StatementDescription: results, used: all.turn}
			texts = texts[1:]
		case *pgconn.CloseComplete:
		default:
			if err == nil {
				err = errClosed
			}
		}
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && !fatal(pg) { // of this text; those behind it were not looked at
		all.byText[texts[0]] = &plan{used: all.turn}
	}
	if closed := line.Close(); err == nil {
		err = closed
	}
	p.why = err
	return err == nil
}

// planName is the same in all processes: a pooler that does not know of prepared
// statements may let one meet what another has prepared.
func planName(text string) string {
	digest := sha256.Sum256([]byte(text))
	return "fenceline_" + hex.EncodeToString(digest[:16])
}

// leave are the texts to be let go so that there is room for n more.
func (a *plans) leave(n int) []string {
	over := len(a.byText) + n - preparedMost
	if over <= 0 {
		return nil
	}
	texts := slices.SortedFunc(maps.Keys(a.byText), func(x, y string) int {
		return cmp.Compare(a.byText[x].used, a.byText[y].used)
	})
	return texts[:min(over, len(texts))]
}
