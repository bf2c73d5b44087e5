package consumer_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
)

// What the handler can promise about the outside world is to have decided, once,
// that something is to happen: it writes that down, with the event's ID.
func rememberMail(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
	_, err := tx.Exec(ctx, "insert into mail (id, text) values ($1, $2)", d.ID, string(d.Payload))
	return err
}

// sendMail does what was decided, behind the transaction. It can crash between
// the request and the delete, and then sends the request again: at least once.
// That the mail goes out once is for the receiver to see to, who is told by the
// key that it is the same one.
func sendMail(ctx context.Context, pool *pgxpool.Pool, client *http.Client, url string) error {
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var id uuid.UUID
			var text string
			// Two senders take two mails. The order of a key's mails is not kept; if
			// it must be, let one sender take them by a serial number.
			if err := tx.QueryRow(ctx, "select id, text from mail limit 1 for update skip locked").Scan(&id, &text); err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
			if err != nil {
				return err
			}
			req.Header.Set("Idempotency-Key", id.String())
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode >= 300 {
				return fmt.Errorf("the mail server says %s", res.Status)
			}
			_, err = tx.Exec(ctx, "delete from mail where id = $1", id)
			return err
		})
		if err != nil {
			return err // pgx.ErrNoRows: nothing is left
		}
	}
}

// Effects outside of the database are not covered by the guard: a handler that
// sends a mail itself sends it again when its transaction fails behind the mail.
// Decide in the handler, act behind the transaction, with an idempotency key.
func ExampleHandler_effectsOutside() {
	ctx := context.Background()
	var pool *pgxpool.Pool
	var source consumer.Source
	go func() { _ = sendMail(ctx, pool, http.DefaultClient, "http://127.0.0.1:8025/send") }() // from time to time
	err := consumer.Run(ctx, pool, source, consumer.Config{Name: "mailer"}, consumer.HandlerFunc(rememberMail))
	fmt.Println(err)
}
