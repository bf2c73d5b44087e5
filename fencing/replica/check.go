package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// probe asks a server what it is and how far it has got, in this order: the
// timeline it then names is at least the one that it has replayed.
func (r *reading) probe(ctx context.Context, conn *pgx.Conn, s *server) (found state, err error) {
	var replayed *string
	err = s.ask(ctx, conn, func(b *pgx.Batch) {
		b.Queue(sqlReplayed).QueryRow(func(row pgx.Row) error { return row.Scan(&replayed) })
		b.Queue(sqlServer).QueryRow(func(row pgx.Row) error { return found.scan(row) })
	})
	if err != nil {
		return found, r.fault(s, conn, err)
	}
	s.version.Store(int64(found.version))
	if replayed != nil {
		if found.replayed, err = parseLSN(*replayed); err != nil {
			return found, err
		}
	}
	return found, nil
}

// ask sends statements that only look, in one round trip. A standby runs nothing in
// SERIALIZABLE, and a login may begin all of its transactions with that: then there
// must be a BEGIN in front that says otherwise, which costs two more.
func (s *server) ask(ctx context.Context, conn *pgx.Conn, fill func(b *pgx.Batch)) error {
	if !s.strict.Load() {
		b := &pgx.Batch{}
		fill(b)
		err := conn.SendBatch(ctx, b).Close()
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || !pgsession.Recovering(pg) {
			return err
		}
		s.strict.Store(true)
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		fill(b)
		return tx.SendBatch(ctx, b).Close()
	})
}

// reached tells whether a server has got to a position. For a generation, which
// is looked for in the snapshot, there is nothing to say yet.
func (r *reading) reached(s *server, found state) (proven bool, refused *RefusedError) {
	p, ok := r.point.(Position)
	if !ok {
		return false, nil
	}
	if s.index >= 0 {
		refused = r.covers(s, found, p)
		return refused == nil, refused
	}
	switch {
	case p.System != found.system:
		return false, refuse(s, ErrAhead, fmt.Sprintf("the position is of the cluster %d, this is %d", p.System, found.system), nil)
	case p.Timeline != found.timeline:
		// A failover lies between. The primary is what counts now, but whether it
		// had the position when it was promoted can't be told here.
		return false, nil
	case found.flushed < p.LSN:
		return false, refuse(s, ErrAhead, fmt.Sprintf("its log ends at %s", formatLSN(found.flushed)), nil)
	}
	return true, nil
}

// generation looks for g in the transaction's snapshot.
func (r *reading) generation(ctx context.Context, tx pgx.Tx, s *server, g Generation, result *Result) (*RefusedError, error) {
	var found bool
	shown := Generation{Key: g.Key}
	var closed, hasResult bool
	switch err := tx.QueryRow(ctx, r.fence, g.Key).Scan(&shown.Epoch, &shown.Token, &closed, &hasResult); {
	case err == nil:
		found = true
		result.Shown, result.Closed = shown, closed
	case !errors.Is(err, pgx.ErrNoRows):
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42501" {
			return nil, fmt.Errorf("replica: %s: the login may not read fences and receipts: grant fenceline_monitor (named after the schema) to it: %w", s.name, err)
		}
		return nil, r.fault(s, tx.Conn(), err)
	}
	// A closed life gets no further result: what is there is all that will be.
	result.Pending = found && !closed && !hasResult
	behind := ErrBehind
	if s.index < 0 {
		behind = ErrAhead
	}
	switch {
	case !found:
		return refuse(s, behind, "it doesn't know the key", nil), nil
	case shown.before(g):
		return refuse(s, behind, fmt.Sprintf("the fence is at (%d, %d)", shown.Epoch, shown.Token), nil), nil
	case result.Pending:
		return refuse(s, ErrPending, fmt.Sprintf("the generation (%d, %d) has no result yet", shown.Epoch, shown.Token), nil), nil
	}
	return nil, nil
}

// fault is the error of a check: the server's, unless it is the caller's context.
func (r *reading) fault(s *server, conn *pgx.Conn, err error) error {
	if refused := serverFault(s, conn, err); refused != nil {
		return refused
	}
	return refuse(s, ErrUnavailable, "a check failed", err)
}
