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

// A worker holds a key, commits a result under it, and does not get the answer.
func Example() {
	pool, link, end := database() // with the migrations; link loses answers on purpose
	defer end()
	ctx := context.Background()

	fences, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true}) // a throw-away server
	if err != nil {
		panic(err)
	}
	lease, err := fences.Acquire(ctx, "catalogue/ci", fencing.LeaseConfig{TTL: 15 * time.Second})
	if err != nil {
		panic(err) // ErrHeld: somebody else works
	}
	defer func() { _ = lease.Release(ctx) }()

	// Everything that determines the effect is in the content: a retry is compared by it.
	content := fencing.Content{Step: "report 17", Type: "application/json", Bytes: []byte(`{"magnitude": 4.5}`)}
	commit := func(ctx context.Context) (fencing.Receipt, error) {
		return lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
			if _, err := tx.Exec(ctx, "insert into quake (id, report) values ($1, $2)", content.Step, content.Bytes); err != nil {
				return err
			}
			return outbox.Append(ctx, tx, outbox.Event{Topic: "quakes", Type: "quake.reported", Subject: content.Step, Payload: content.Bytes})
		})
	}

	link.LoseAnswer("report 17")
	_, err = commit(ctx)
	fmt.Println("unknown:", errors.Is(err, fencing.ErrUnknownOutcome))

	// It has committed; asked again, by Retry or by another process, it says so.
	receipt, err := fencing.Retry(ctx, commit)
	fmt.Println("replayed:", receipt.Replayed, "token:", receipt.Position.Token, "error:", err)

	var rows int
	err = pool.QueryRow(ctx, "select count(*) from quake").Scan(&rows)
	fmt.Println("rows:", rows, err)

	// Output:
	// unknown: true
	// replayed: true token: 1 error: <nil>
	// rows: 1 <nil>
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
