package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// Which guards are there is remembered as a hint: where it is wrong, because a
// transaction was rolled back or a guard has gone, the guard is made all the same.
func TestAGuardThatIsGoneAlthoughItWasSeenIsMadeAnew(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	other := func(seq int64) outbox.Record { r := ev(1, 1, seq); r.Key = "other"; return r }
	stop := errors.New("stop")
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.guard.Apply(ctx, tx, l.deliver(ev(1, 1, 1)), l.handler()); err != nil {
			return err
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	l.outcomes(l.apply(ev(1, 1, 1)), "applied 2")
	l.outcomes(l.apply(ev(1, 1, 2), other(1)), "applied 4e", "applied 2")
	l.outcomes(l.apply(ev(1, 1, 3), other(2)), "applied 4e", "applied 4e") // both are known from here on
	l.exec("delete from fenceline.guard where key = 'k'")
	l.outcomes(l.apply(ev(1, 1, 4), other(3)), "applied 2", "applied 4e")
	l.outcomes(l.apply(ev(1, 1, 4), ev(1, 1, 5), other(3)), "duplicate 4c", "applied 4e", "duplicate 4c")
}

// Guards are moved where they were locked. Whoever writes to one in between has
// moved it elsewhere, and then nothing is committed: else the effect would be, and
// its guard not.
func TestAHandlerThatWritesToAGuardCommitsNothing(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(1, 1, 1))
	for name, rec := range map[string]outbox.Record{"an event like others": ev(1, 1, 2), "one that changes more": skip(1, 2, 2)} {
		recs := []outbox.Record{rec}
		if rec.Kind != outbox.KindData { // a marker has no handler: the event before it has
			recs = []outbox.Record{ev(1, 1, 2), skip(1, 4, 4)}
		}
		err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := l.guard.Apply(ctx, tx, l.deliver(recs...), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				_, err := tx.Exec(ctx, "update fenceline.guard set updated_at = now() where key = $1", d.Key)
				return err
			}))
			return err
		})
		if !errors.Is(err, consumer.ErrNotYours) || !strings.Contains(err.Error(), "the guards are not where they were locked") || !strings.Contains(err.Error(), "0 of 1") {
			t.Errorf("%s: the error is %v", name, err)
		}
		l.at("1/1/1 {} free")
	}
	l.outcomes(l.apply(ev(1, 1, 2)), "applied 4e")
	l.effects("1.1", "1.2")
}
