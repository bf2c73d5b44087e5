package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// pretender is a transaction that says it has passed a gate.
type pretender struct {
	pgx.Tx
	pass outbox.Pass
}

func (p pretender) Gate() outbox.Pass { return p.pass }

func TestAnAppendOutsideTheGateIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	b.commit(lease, "s", event("results"))
	pos := lease.Position()
	tx, err := b.pool.Begin(ctx)
	b.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	err = outbox.Append(ctx, pretender{tx, outbox.Pass{Schema: "fenceline", Key: pos.Key, Epoch: pos.Epoch, Token: pos.Token, Step: "s"}}, event("results"))
	if !errors.Is(err, outbox.ErrNoPass) || !strings.HasPrefix(err.Error(), "outbox: ") {
		t.Error(err)
	}
}

func TestTheTableRefusesWhatTheLibraryWouldHaveRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	pos := lease.Position()
	b.commit(lease, "", event("results")) // behind which one event takes the short way
	several := `select fenceline.append($1, $2, $3, $4, $5, array[gen_random_uuid()], array['t'], array[$6], array[null]::text[], array['s'], array[null]::text[], array[$7::text], array[$8::bytea])`
	group := `select fenceline.append_group(array[$1]::text[], array[$2]::bigint[], array[$3]::bigint[], array[$4]::text[], array[$5]::text[], array[gen_random_uuid()], array['t'], array[$6]::text[], array[null]::text[], array['s'], array[null]::text[], array[$7::text], array[$8::bytea], array[true])`
	one := `select fenceline.append_one($1, $2, $3, $4, $5, gen_random_uuid(), 't', $6, null, 's', null, $7, $8)`
	for name, c := range map[string]struct {
		topic, kind string
		headers     *string
		payload     []byte
		want        string
	}{
		"as it should be":    {"results", "t", nil, make([]byte, 1000), "ok"},
		"payload too large":  {"results", "t", nil, make([]byte, outbox.MaxRecordBytes), "23514"},
		"headers too large":  {"results", "t", ptr(`["h", "` + strings.Repeat("x", outbox.MaxRecordBytes) + `"]`), nil, "23514"},
		"topic with a space": {"a b", "t", nil, nil, "23514"},
		"topic of dots":      {"..", "t", nil, nil, "23514"},
		"no type":            {"results", "", nil, nil, "23514"},
		"type too long":      {"results", strings.Repeat("t", 256), nil, nil, "23514"},
		"headers not JSON":   {"results", "t", ptr("x"), nil, "22P02"},
	} {
		t.Run(name, func(t *testing.T) {
			want := func(way string, err error) {
				t.Helper()
				got := "ok"
				var pg *pgconn.PgError
				if errors.As(err, &pg) {
					got = pg.Code
				} else if err != nil {
					got = err.Error()
				}
				if got != c.want {
					t.Errorf("%s: got %s, want %s", way, got, c.want)
				}
			}
			for way, call := range map[string]string{"several": several, "one": one, "of several keys": group} {
				step := name + ", " + way
				_, err := lease.Commit(ctx, fencing.Content{Step: step}, func(ctx context.Context, tx fencing.Tx) error {
					_, err := tx.Exec(ctx, call, pos.Key, pos.Epoch, pos.Token, step, c.topic, c.kind, c.headers, c.payload)
					return err
				})
				want(way, err)
			}
			_, err := b.pool.Exec(ctx, `select fenceline.enter($1, $2, $3, $4, 'x', sha256('x'), '5 s', $5, gen_random_uuid(), 't', $6, null, 's', null, $7, $8)`,
				pos.Key, pos.Epoch, pos.Token, name+", with the gate", c.topic, c.kind, c.headers, c.payload)
			want("with the gate", err)
		})
	}
}

func ptr(s string) *string { return &s }

func TestAnInvalidEventIsRefusedAtOnceAndNothingOfTheCallIsAppended(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	_, err := lease.Commit(ctx, fencing.Content{}, func(ctx context.Context, tx fencing.Tx) error {
		err := outbox.Append(ctx, tx, event("results"), outbox.Event{Topic: "results", Type: "t", Payload: make([]byte, outbox.MaxRecordBytes)})
		var invalid *outbox.InvalidEventError
		if !errors.As(err, &invalid) || invalid.Field != "payload" {
			t.Errorf("got %v", err)
		}
		return nil // a callback that goes on all the same
	})
	b.ok(err)
	if rs := b.rows("true"); len(rs) != 0 {
		t.Errorf("%d rows", len(rs))
	}
}

// What passes the library's check must pass the table's, or the error would
// come with COMMIT.
func TestTheLargestRecordsThatTheLibraryAcceptsAreStored(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire(strings.Repeat("k", 512))
	for name, grow := range map[string]func(n int) outbox.Event{
		"payload": func(n int) outbox.Event { return outbox.Event{Topic: "results", Type: "t", Payload: make([]byte, n)} },
		"headers": func(n int) outbox.Event {
			return outbox.Event{Topic: "results", Type: "t", Headers: []outbox.Header{{Name: "h", Value: strings.Repeat("x", n)}}}
		},
		"headers with escapes": func(n int) outbox.Event {
			return outbox.Event{Topic: "results", Type: "t", Headers: []outbox.Header{{Name: "h", Value: strings.Repeat("\"\x01", n/2)}}}
		},
		"many headers": func(n int) outbox.Event {
			return outbox.Event{Topic: "results", Type: "t", Headers: slices.Repeat([]outbox.Header{{Name: "h", Value: "20 bytes of a value."}}, n/30)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The largest size that Append accepts, to a few bytes.
			low, high := 0, outbox.MaxRecordBytes
			for high-low > 8 {
				mid := (low + high + 1) / 2
				if appendable(lease.Position().Key, grow(mid)) {
					low = mid
				} else {
					high = mid - 1
				}
			}
			b.commit(lease, name, grow(low))
		})
	}
}

// appendable asks Append itself, with a transaction that takes what it is given.
func appendable(key string, e outbox.Event) bool {
	return outbox.Append(ctx, sink{key: key}, e) == nil
}

type sink struct {
	pgx.Tx
	key string
}

func (s sink) Gate() outbox.Pass    { return outbox.Pass{Schema: "fenceline", Key: s.key} }
func (s sink) Queue(string, ...any) {}
