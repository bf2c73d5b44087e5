package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// plainNotify is plainFour with what most programs do to wake a relay.
func plainNotify(ctx context.Context, c *committer, n int64) error {
	key := c.lease(n).Position().Key
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := writePlain(ctx, tx, key, n); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "select pg_notify('bench', '')")
		return err
	})
}

// wake measures what it costs commits that the relay is woken. Somebody listens
// all along.
func (b *bench) wake(ctx context.Context) (_ *figures, err error) {
	f := &figures{ID: "wake", Title: "Waking the relay", Bars: "ratio",
		Text: "The commits of the section before, with and without what tells the relay of them; a session listens in every arm. A NOTIFY inside a transaction makes commits of the whole cluster wait for each other, since notifications are delivered in the order of commits. Ours follows after commits, at most one in five milliseconds.",
		Columns: []column{{Key: "ratio", Title: "to the same without", Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "commits/s", Brief: true},
			{Key: "client", Title: "client CPU µs a commit", Brief: true}, {Key: "server", Title: "PostgreSQL", Brief: true}}}
	dsn, err := b.database(ctx, "wake")
	if err != nil {
		return f, err
	}
	defer b.dropDatabase(ctx, "wake")
	silent, err := newCommitter(ctx, dsn, nil)
	if err != nil {
		return f, err
	}
	defer silent.close()
	waker, err := outbox.NewWaker(silent.pool, outbox.WakerConfig{})
	if err != nil {
		return f, err
	}
	defer waker.Close()
	woken, err := silent.another(ctx, waker.Wake)
	if err != nil {
		return f, err
	}
	listener, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return f, err
	}
	if _, err := listener.Exec(ctx, "listen bench; listen "+schema.Quote(schema.WakeChannel(schema.Default))); err != nil {
		return f, err
	}
	listening, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = listener.WaitForNotification(listening)
		}
		if listening.Err() != nil {
			err = listener.Close(context.WithoutCancel(ctx))
		}
		ended <- err
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	var trials []trial
	add := func(name, note, of string, c *committer, commit func(context.Context, *committer, int64) error) {
		trials = append(trials, trial{name, note, of, func(ctx context.Context) (result, error) {
			sm, err := c.slice(ctx, b.stack, &commitArm{name: name, commit: commit}, b.size.Slice)
			return result{figures: sm.figures()}, err
		}})
	}
	const plain, batch = "plain", "fenceline, batch"
	add(plain, "BEGIN, business row, outbox row, COMMIT", plain, silent, plainFour)
	add("plain, NOTIFY in the transaction", "pg_notify before COMMIT", plain, silent, plainNotify)
	add(batch, "Lease.CommitBatch, nobody is woken", batch, silent, fencedBatch)
	add("fenceline, batch, Waker", "the same with outbox.Waker, as it comes", batch, woken, fencedBatch)
	// Plans and caches.
	for _, t := range trials {
		if _, err := t.run(ctx); err != nil {
			return f, err
		}
	}
	return f, f.measure(ctx, trials, b.size.Rounds, b.say)
}
