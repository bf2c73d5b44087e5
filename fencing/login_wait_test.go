package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// What a login may have set for its queries and transactions ends no wait that is
// the library's to end: each waits as long as it was told, and then has its answer,
// or says who was in the way.
func TestNoTimeThatALoginHasSetEndsAWaitOfTheLibrarys(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"statement_timeout", "lock_timeout", "transaction_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			noTimeEndsAWait(newWorld(t), setting)
		})
	}
}

func noTimeEndsAWait(w *world, setting string) {
	if !value[bool](w, "select current_setting($1, true) is not null", setting) {
		w.Logf("this server knows no %s", setting) // it is there since PostgreSQL 17
		return
	}
	patient := fencing.LeaseConfig{TTL: 10 * time.Minute}
	producer := w.workerAt("producer", w.producer, 4)
	operator := w.workerAt("operator", pgmigrated.Login(w, w.dsn, schema.KindOperator), 4)
	mend, err := fencing.NewOperator(ctx, operator.pool, "")
	w.ok(err)

	rotated, closed, released, handed := producer.acquireWith("rotate", patient), producer.acquireWith("close", patient), producer.acquireWith("release", patient), producer.acquireWith("hand over", patient)
	late := producer.acquireWith("late", patient)
	for _, key := range []string{"acquire", "open", "own", "expire"} {
		producer.acquireWith(key, patient)
	}
	_, err = producer.acquireWith("sweep", patient).Commit(ctx, content("s", "x"), write)
	w.ok(err)
	w.expire("acquire")
	producer.takeOver("sweep")

	for _, k := range []*worker{producer, operator} {
		w.exec("alter role " + pgx.Identifier{k.pool.Config().ConnConfig.User}.Sanitize() + " set " + setting + " = '500ms'")
		k.pool.Reset()
	}
	another := func() error { // as if the database had been restored
		_, err := w.admin.Exec(ctx, "update fenceline.history set timeline = 'FFFFFFFF', on_new = 'bump'")
		return err
	}
	for _, c := range []struct {
		key  string
		wait func(key string) error
		then func() error // before it waits
	}{
		{"acquire", func(key string) error { _, err := producer.Acquire(ctx, key, patient); return err }, nil},
		{"rotate", func(string) error { _, err := rotated.Rotate(ctx); return err }, nil},
		{"close", func(string) error { _, err := closed.Close(ctx); return err }, nil},
		{"open", func(key string) error { _, err := producer.Open(ctx, key); return err }, nil},
		{"release", func(string) error { return released.Release(ctx) }, nil},
		{"hand over", func(string) error { return handed.HandOver(ctx, "b") }, nil},
		{"own", func(key string) error { return mend.SetOwner(ctx, key, "", "me") }, nil},
		{"expire", func(key string) error { _, _, _, err := mend.Expire(ctx, key, "me"); return err }, nil},
		{"sweep", func(string) error {
			_, err := operator.Sweep(ctx, fencing.SweepConfig{RetryWindow: time.Nanosecond, Residence: time.Nanosecond})
			return err
		}, nil},
		{"confirm", func(string) error { return mend.Confirm(ctx, "me") }, nil},
		{"follow", func(string) error {
			if _, err := late.Commit(ctx, content("s", "x"), write); !errors.Is(err, fencing.ErrUnconfirmable) {
				return err
			}
			return nil
		}, another},
		{"bump", func(string) error { _, err := mend.Bump(ctx, 0, "me"); return err }, nil},
	} {
		if c.then != nil {
			w.ok(c.then())
		}
		holder := w.session(w.dsn)
		// A commit in progress, and somebody who has just renewed.
		_, err := holder.Exec(ctx, "begin; insert into fenceline.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token) values ('x', 1, 0, 0, 0, 0); "+
			"select from fenceline.fence where key = '"+c.key+"' for no key update; select from fenceline.lease where key = '"+c.key+"' for no key update")
		w.ok(err)
		answer := make(chan error, 1)
		go func() { answer <- c.wait(c.key) }()
		waited, stop := context.WithTimeout(ctx, time.Minute)
		for enough := false; !enough && waited.Err() == nil && len(answer) == 0; {
			err := w.admin.QueryRow(ctx, "select coalesce(max(clock_timestamp() - query_start) > interval '800 ms', false) from pg_stat_activity where usename = any ($1) and wait_event_type = 'Lock'",
				[]string{w.loginOf(w.producer), operator.pool.Config().ConnConfig.User}).Scan(&enough)
			w.ok(err)
			time.Sleep(5 * time.Millisecond)
		}
		w.ok(waited.Err())
		stop()
		_, err = holder.Exec(ctx, "rollback")
		w.ok(err)
		// Or it has waited as long as it was told, on a machine that is busy.
		if err := <-answer; err != nil && !errors.Is(err, fencing.ErrBlocked) && !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("%s: %s: %v", setting, c.key, err)
		}
	}
}

// Who is in the way is named whatever of these ends first.
func TestATransactionTimeoutOfALoginsDoesNotKeepATakeoverFromNamingWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if !value[bool](w, "select current_setting('transaction_timeout', true) is not null") {
		return // it is there since PostgreSQL 17
	}
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	p := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	w.set("transaction_timeout = '500ms'")
	b.pool.Reset()
	var blocked *fencing.BlockedError
	_, err := b.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 700 * time.Millisecond})
	if !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(p.pid) {
		t.Errorf("acquire: %v", err)
	}
	p.goOn()
	w.ok((<-p.done).err)
}
