package cmdtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// Commit takes the lease of a key and commits each payload as an event of its
// own, as a producer does; then it gives the lease back.
func Commit(t testing.TB, dsn, topic, key, eventType string, payloads ...string) {
	t.Helper()
	ctx := t.Context()
	pool := pgtest.Connect(t, dsn)
	fences, err := fencing.New(ctx, pool, fencing.Config{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := fences.Acquire(ctx, key, fencing.LeaseConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for i, payload := range payloads {
		content := fencing.Content{Step: fmt.Sprint(i), Type: "application/json", Bytes: []byte(payload)}
		_, err := lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{Topic: topic, Type: eventType, Payload: []byte(payload)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
}
