package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
)

// applyPrefix tells the names of these arms from those of relays.
const applyPrefix = "apply: "

// applyArm is a way to apply the events of a topic to a database.
type applyArm struct {
	name, note string
	work       worker
}

var applyArms = []applyArm{
	{applyReference, "500 events and the offset in one transaction; a copy under another offset is applied a second time, an older event after a newer one too", byHand(applyPlain)},
	{"inbox table of ids", "each event's id is inserted first, ON CONFLICT DO NOTHING, and the event is applied if that was new; the table grows for ever", byHand(applyInbox)},
	{"inbox, one statement a batch", "the same, all ids of a batch in one statement", byHand(applyInboxBatch)},
	{"fenceline", "consumer.Run as it comes, policy strict", applyFenceline},
}

// byHand is a consumer that people write: our source of records, so that what
// differs is what happens in the database, a goroutine for each partition, a
// transaction for 500 records.
func byHand(apply func(ctx context.Context, tx pgx.Tx, ds []consumer.Delivery) error) worker {
	return func(ctx context.Context, j job, ready func()) error {
		pool, err := pgxpool.New(ctx, j.dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		source, err := applySource(j)
		if err != nil {
			return err
		}
		defer source.Close()
		ready()
		gen, err := source.Next(ctx)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, len(gen.Assigned()))
		for i, a := range gen.Assigned() {
			wg.Go(func() { errs[i] = consumePartition(ctx, pool, gen, a.Partition, apply) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

func applySource(j job) (*kafkasource.Source, error) {
	// A group of its own: nothing is committed for it yet.
	db, err := pgx.ParseConfig(j.dsn)
	if err != nil {
		return nil, err
	}
	return kafkasource.New(kafkasource.Config{Brokers: []string{j.kafka}, Group: db.Database, Topics: []string{j.topic}, Logger: slog.New(slog.DiscardHandler)})
}

func consumePartition(ctx context.Context, pool *pgxpool.Pool, gen consumer.Generation, p consumer.Partition, apply func(context.Context, pgx.Tx, []consumer.Delivery) error) error {
	// As consumer.Run does: the next piece is fetched while one is applied.
	fetched, failed := make(chan consumer.Fetched, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for offset := int64(0); ; {
			f, err := gen.Fetch(ctx, p, offset, 1<<20)
			if err != nil {
				failed <- err
				return
			}
			offset = f.Next
			select {
			case fetched <- f:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	for {
		var f consumer.Fetched
		select {
		case f = <-fetched:
		case err := <-failed:
			return err
		}
		for recs := f.Records; len(recs) > 0; {
			n := min(500, len(recs))
			ds := make([]consumer.Delivery, n)
			for i, r := range recs[:n] {
				ds[i] = consumer.NewDelivery(p, r)
			}
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if err := apply(ctx, tx, ds); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "insert into hand_offset values ($1, $2) on conflict (partition) do update set next_offset = excluded.next_offset", p.ID, recs[n-1].Offset+1)
				return err
			})
			if err != nil {
				return fmt.Errorf("apply %d records of %s: %w", n, p, err)
			}
			recs = recs[n:]
		}
	}
}

func applyPlain(ctx context.Context, tx pgx.Tx, ds []consumer.Delivery) error {
	for _, d := range ds {
		if err := handle(ctx, tx, d.Key, d.Seq, d.Payload); err != nil {
			return err
		}
	}
	return nil
}

func applyInbox(ctx context.Context, tx pgx.Tx, ds []consumer.Delivery) error {
	for _, d := range ds {
		tag, err := tx.Exec(ctx, "insert into inbox (id) values ($1) on conflict (id) do nothing", d.ID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			continue
		}
		if err := handle(ctx, tx, d.Key, d.Seq, d.Payload); err != nil {
			return err
		}
	}
	return nil
}

func applyInboxBatch(ctx context.Context, tx pgx.Tx, ds []consumer.Delivery) error {
	ids := make([]uuid.UUID, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	rows, err := tx.Query(ctx, "insert into inbox (id) select unnest($1::uuid[]) on conflict (id) do nothing returning id", ids)
	if err != nil {
		return err
	}
	fresh := make(map[uuid.UUID]bool, len(ids))
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil }); err != nil {
		return err
	}
	for _, d := range ds {
		if !fresh[d.ID] {
			continue
		}
		if err := handle(ctx, tx, d.Key, d.Seq, d.Payload); err != nil {
			return err
		}
	}
	return nil
}

func applyFenceline(ctx context.Context, j job, ready func()) error {
	pool, err := pgxpool.New(ctx, j.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	source, err := applySource(j)
	if err != nil {
		return err
	}
	ready()
	return consumer.Run(ctx, pool, source, consumer.Config{Name: "bench", Logger: slog.New(slog.DiscardHandler)},
		consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
			return handle(ctx, tx, d.Key, d.Seq, d.Payload)
		}))
}
