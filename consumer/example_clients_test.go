package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// applyGuarded is the guard in a transaction of one's own. An event that its handler
// rejects is parked or dead-lettered, and the others are tried without it. Any other
// error is given back: it may pass (a deadlock, a failover), so all of it is to be
// tried again, and no event be blamed. Whoever wants an end to that counts the tries,
// and sets Failed when it is enough.
func applyGuarded(ctx context.Context, pool *pgxpool.Pool, guard *consumer.Guard, deliveries []consumer.Delivery, h consumer.Handler) (results []consumer.Result, err error) {
	for {
		err = pgx.BeginTxFunc(ctx, pool, readCommitted, func(tx pgx.Tx) (err error) {
			results, err = guard.Apply(ctx, tx, deliveries, h)
			return err
		})
		var failed *consumer.HandlerError
		if !errors.As(err, &failed) || !consumer.IsRejected(err) {
			break
		}
		if failed.Delivery.Resumed {
			err := pgx.BeginTxFunc(ctx, pool, readCommitted, func(tx pgx.Tx) error { return guard.Fail(ctx, tx, failed.Delivery, failed.Err) })
			if err != nil {
				return nil, err
			}
			continue
		}
		deliveries[failed.Index].Failed = failed.Err
	}
	// What waited for these and was too much for one transaction.
	for more := consumer.More(results); err == nil && len(more) > 0; {
		var resumed []consumer.Result
		err = pgx.BeginTxFunc(ctx, pool, readCommitted, func(tx pgx.Tx) (err error) {
			resumed, err = guard.Resume(ctx, tx, more, h)
			return err
		})
		more, results = consumer.More(resumed), append(results, resumed...)
	}
	return results, err
}

// consumeWithFranz reads with franz-go: the offsets are committed behind the
// transaction, and correctness rests on the guard alone. Where polling blocks
// rebalances (BlockRebalanceOnPoll), one comes through when a piece is done; else no
// other member would ever get a partition, and Close not return.
func consumeWithFranz(ctx context.Context, client *kgo.Client, pool *pgxpool.Pool, guard *consumer.Guard, h consumer.Handler) error {
	defer client.AllowRebalance()
	for {
		fetches := client.PollRecords(ctx, 500)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		var deliveries []consumer.Delivery
		fetches.EachRecord(func(r *kgo.Record) {
			k := consumer.KafkaRecord{Offset: r.Offset, Time: r.Timestamp, Key: r.Key, Value: r.Value}
			for _, header := range r.Headers {
				k.Headers = append(k.Headers, outbox.WireHeader{Key: header.Key, Value: header.Value})
			}
			deliveries = append(deliveries, consumer.NewDelivery(consumer.Partition{Topic: r.Topic, ID: int(r.Partition)}, k))
		})
		if _, err := applyGuarded(ctx, pool, guard, deliveries, h); err != nil {
			return err
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		client.AllowRebalance()
	}
}

// The guard under franz-go, or any other client: it needs a transaction and the
// records, and nothing else.
func ExampleGuard_franz() {
	ctx := context.Background()
	var pool *pgxpool.Pool // the service's own database
	guard, err := consumer.NewGuard(consumer.GuardConfig{Consumer: "quake-report"})
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9092"), kgo.ConsumerGroup("quake-report"), kgo.ConsumeTopics("quakes"),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
	if err != nil {
		panic(err)
	}
	err = consumeWithFranz(ctx, client, pool, guard, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		_, err := tx.Exec(ctx, "update report set quakes = quakes + 1 where net = $1", d.Key)
		return err
	}))
	fmt.Println(err)
}

// webhook takes events over HTTP, as a bridge from Kafka sends them: CloudEvents
// in binary mode, with the wire format's ce_ headers as ce- headers.
func webhook(pool *pgxpool.Pool, guard *consumer.Guard, h consumer.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the event is too large", http.StatusRequestEntityTooLarge)
			return
		}
		k := consumer.KafkaRecord{Time: time.Now(), Key: []byte(r.Header.Get("ce-fencekey")), Value: body}
		if v := r.Header.Get("Content-Type"); v != "" {
			k.Headers = append(k.Headers, outbox.WireHeader{Key: "content-type", Value: []byte(v)})
		}
		for name, values := range r.Header {
			if attr, ok := strings.CutPrefix(strings.ToLower(name), "ce-"); ok {
				for _, v := range values {
					k.Headers = append(k.Headers, outbox.WireHeader{Key: "ce_" + attr, Value: []byte(v)})
				}
			}
		}
		d := consumer.NewDelivery(consumer.Partition{Topic: r.URL.Path}, k)
		results, err := applyGuarded(r.Context(), pool, guard, []consumer.Delivery{d}, h)
		switch {
		case err != nil:
			http.Error(w, "not now", http.StatusServiceUnavailable) // it is sent again
		case results[0].Outcome == consumer.Quarantined:
			http.Error(w, "put aside: "+string(results[0].Reason), http.StatusUnprocessableEntity)
		default:
			w.Header().Set("Outcome", string(results[0].Outcome))
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

// The guard behind an HTTP endpoint: whoever sends may send again as often as
// it likes.
func ExampleGuard_webhook() {
	var pool *pgxpool.Pool
	guard, err := consumer.NewGuard(consumer.GuardConfig{Consumer: "quake-report"})
	if err != nil {
		panic(err)
	}
	server := &http.Server{Addr: "127.0.0.1:8080", ReadHeaderTimeout: 5 * time.Second, Handler: webhook(pool, guard, consumer.Ignore)}
	fmt.Println(server.ListenAndServe())
}

// withDatabaseSQL gives a pgx transaction on a connection of database/sql, opened
// with pgx's driver.
func withDatabaseSQL(ctx context.Context, db *sql.DB, work func(pgx.Tx) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to its pool
	return conn.Raw(func(driver any) error {
		return pgx.BeginTxFunc(ctx, driver.(*stdlib.Conn).Conn(), readCommitted, work)
	})
}

// The guard for a service that uses database/sql.
func ExampleGuard_databaseSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://127.0.0.1/reports")
	if err != nil {
		panic(err)
	}
	guard, err := consumer.NewGuard(consumer.GuardConfig{Consumer: "quake-report"})
	if err != nil {
		panic(err)
	}
	var deliveries []consumer.Delivery // from wherever
	err = withDatabaseSQL(ctx, db, func(tx pgx.Tx) error {
		_, err := guard.Apply(ctx, tx, deliveries, consumer.Ignore)
		return err
	})
	fmt.Println(err)
}
