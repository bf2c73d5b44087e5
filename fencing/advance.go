package fencing

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Advance advances the fence of key inside the caller's transaction, for those
// whose lease lives elsewhere (etcd, Kubernetes, a cron table). It must be the
// transaction, or come before the moment, in which the new holder becomes the
// holder. token is the number that the other system has given, from 1 to 2^62:
// a larger one than the fence's is taken, the same one again is a no-op, a
// smaller one gives ErrStale. Zero takes the next one.
//
// A managed lease of the key ends with it. The login needs the role
// fenceline_advancer, which producers should not have. The transaction must be
// READ COMMITTED, and can only be rolled back after an error: [*RefusedError]
// matching ErrStale or ErrClosed, [*BlockedError] when a commit in progress lasts
// longer than 5 s, ErrHistory, ErrOwner, ErrIsolation, ErrMisuse behind the gate of
// the same key, [*InvalidError] or ErrInvalid, or the database's.
func (f *Fences) Advance(ctx context.Context, tx pgx.Tx, key string, token int64) (Position, error) {
	if err := validateKey(key); err != nil {
		return Position{}, err
	}
	var want *int64
	if token != 0 {
		want = &token
	}
	// It waits for 5 s at the most, behind a database that begins a new history by
	// itself.
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CommitTimeout+2*silence)
	defer cancel()
	p := Position{Key: key}
	var waits *bool // an advance that had happened before waits for the standby as the first one has
	err := tx.QueryRow(ctx, f.sql.advance, key, want).Scan(&p.Epoch, &p.Token, &waits)
	return p, translate(err)
}
