package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// A worker that holds a key and publishes what it produced under it.
func Example() {
	work := func(ctx context.Context, pool *pgxpool.Pool, id string, body []byte) error {
		fences, err := fencing.New(ctx, pool, fencing.Config{})
		if err != nil {
			return err
		}
		lease, err := fences.Acquire(ctx, "catalogue/ci", fencing.LeaseConfig{TTL: 15 * time.Second})
		if err != nil {
			return err // ErrHeld: somebody else works
		}
		defer func() { _ = lease.Release(ctx) }()

		content := fencing.Content{Step: id, Type: "application/json", Bytes: body}
		for {
			receipt, err := lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
				if _, err := tx.Exec(ctx, "insert into quake (id, report) values ($1, $2)", id, body); err != nil {
					return err
				}
				return outbox.Append(ctx, tx, outbox.Event{Topic: "quakes", Type: "quake.reported", Subject: id, Payload: body})
			})
			if errors.Is(err, fencing.ErrUnknownOutcome) && ctx.Err() == nil {
				continue // the receipt tells
			}
			if err == nil && receipt.Replayed {
				fmt.Println("had been committed at", receipt.CommittedAt)
			}
			return err
		}
	}
	_ = work
}

// The lease is another system's; its number goes into the fence in the same
// transaction in which the new holder becomes the holder here.
func ExampleFences_Advance() {
	become := func(ctx context.Context, pool *pgxpool.Pool, fences *fencing.Fences, term int64) (fencing.Position, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return fencing.Position{}, err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if _, err := tx.Exec(ctx, "update leader set term = $1 where name = 'catalogue'", term); err != nil {
			return fencing.Position{}, err
		}
		pos, err := fences.Advance(ctx, tx, "catalogue/ci", term)
		if err != nil {
			return fencing.Position{}, err // ErrStale: a later term has begun
		}
		return pos, tx.Commit(ctx)
	}
	_ = become
}
