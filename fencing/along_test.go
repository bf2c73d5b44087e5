package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// Four ways lead into the outbox: with the gate, alone, with others, and with
// those of other commits. They make one stream.
func TestEventsThatTheGateTookAlongAreInOneStreamWithAllOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	event := func(way string, i int) outbox.Event {
		return outbox.Event{Topic: "results", Type: way, Subject: fmt.Sprint(i), ContentType: "text/plain", Payload: []byte(way),
			Headers: []outbox.Header{{Name: "traceparent", Value: "00-x"}}}
	}
	ways := map[string]func(l *fencing.Lease, i int) error{
		"batch": func(l *fencing.Lease, i int) error {
			_, err := a.CommitBatch(ctx, l.Position(), content(fmt.Sprint("batch ", i), "x"), func(b *fencing.Batch) error {
				return outbox.Append(ctx, b, event("batch", i))
			})
			return err
		},
		"batch of two calls": func(l *fencing.Lease, i int) error {
			_, err := a.CommitBatch(ctx, l.Position(), content(fmt.Sprint("two ", i), "x"), func(b *fencing.Batch) error {
				return errors.Join(outbox.Append(ctx, b, event("two", i)), outbox.Append(ctx, b, event("two", i+1), event("two", i+2)))
			})
			return err
		},
		"callback": func(l *fencing.Lease, i int) error {
			_, err := a.Commit(ctx, l.Position(), content(fmt.Sprint("callback ", i), "x"), func(ctx context.Context, tx fencing.Tx) error {
				return outbox.Append(ctx, tx, event("callback", i))
			})
			return err
		},
	}
	names := []string{"batch", "callback", "batch of two calls"}
	slices.Sort(names)
	for life := range 2 {
		// Each way is the first one of some life of some key.
		for k, first := range names {
			key := fmt.Sprint("k", k)
			if life > 0 {
				a.open(key)
			}
			lease := a.acquire(key)
			w.ok(ways[first](lease, 1))
			for i := range 2 {
				for _, name := range names {
					w.ok(ways[name](lease, 10*(i+1)))
				}
			}
			a.close(lease.Position())
		}
	}
	for k := range names {
		key := fmt.Sprint("k", k)
		if got := value[string](w, `select string_agg(distinct kind || ' ' || coalesce(contenttype, '-') || ' ' || coalesce(headers::text, '-'), ', ') from fenceline.outbox where key = $1`, key); got != `data text/plain ["traceparent", "00-x"], end - -` {
			t.Errorf("%s: %s", key, got)
		}
		// Dense in each life, and the first of each says what was before.
		if bad := value[string](w, `select coalesce(string_agg(epoch || '/' || seq, ', '), '') from (
				select *, row_number() over (partition by epoch order by pos) as n, lag(epoch) over (order by pos) as le, lag(seq) over (order by pos) as ls from fenceline.outbox where key = $1) o
			where seq <> n or (seq = 1) <> (history is not null) or prev_epoch is distinct from case when seq = 1 then le end or prev_seq is distinct from case when seq = 1 then ls end`, key); bad != "" {
			t.Errorf("%s: not as they should be: %s", key, bad)
		}
		if n := value[int](w, "select count(*)::int from fenceline.head where key = $1", key); n != 1 {
			t.Errorf("%s: %d rows of head", key, n)
		}
	}
}

// Where an append stands among the statements of a batch is told as if the gate
// had not taken it along.
func TestWhatTheGateTookAlongIsNamedAsTheCallThatItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := a.commitBatch(lease.Position(), content("first", "x"))
	w.ok(err)
	w.exec("alter table fenceline.outbox add constraint told check (type <> 'untold')")
	commit := func(step string, fill func(*fencing.Batch) error) (s *fencing.StatementError) {
		_, err := a.CommitBatch(ctx, lease.Position(), content(step, "x"), fill)
		if !errors.As(err, &s) {
			t.Fatalf("%s: %v is no StatementError", step, err)
		}
		return s
	}
	s := commit("refused", func(b *fencing.Batch) error {
		b.Queue("select 1")
		return outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "untold"})
	})
	if s.Index != 1 || sqlstate(s.Err) != "23514" {
		t.Errorf("refused append: statement %d, %v", s.Index, s.Err)
	}
	for at := range 3 {
		s := commit(fmt.Sprint("fails at ", at), func(b *fencing.Batch) error {
			for i := range 3 {
				sql := "select 1"
				if i == at {
					sql = "select 1/0"
				}
				if i == 1 && at != 1 {
					if err := outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "t"}); err != nil {
						return err
					}
					continue
				}
				b.Queue(sql)
			}
			return nil
		})
		if s.Index != at || sqlstate(s.Err) != "22012" {
			t.Errorf("statement %d is said to be %d: %v", at, s.Index, s.Err)
		}
	}
	w.wantWritten("k", written{1, 1, 1})
}

// The setting is what the session has read from the file. Any value that is not
// the recorded one has the file read again, so it neither keeps anybody out nor
// hides another cluster. (A login that sets the recorded one by hand fools itself.)
func TestTheIdentityInASettingIsNoMoreThanAMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	system := value[string](w, "select c.system_identifier || '/' || d.oid from pg_control_system() c, pg_database d where d.datname = current_database()")
	for i, before := range []string{"", "1", system, "nonsense"} {
		_, err := a.pool.Exec(ctx, "select set_config('fenceline.identity', $1, false)", before)
		w.ok(err)
		_, err = a.commit(lease.Position(), content(fmt.Sprint(i), "x"))
		w.ok(err)
		var now string
		w.ok(a.pool.QueryRow(ctx, "select current_setting('fenceline.identity')").Scan(&now))
		if now != system {
			t.Errorf("behind %q a commit leaves %q, want %s", before, now, system)
		}
	}
	// A cluster that is not the recorded one, whatever the session says.
	w.newIdentity("system_identifier = 1")
	for _, says := range []string{"", system, "nonsense"} {
		_, err := a.pool.Exec(ctx, "select set_config('fenceline.identity', $1, false)", says)
		w.ok(err)
		_, err = a.commit(lease.Position(), content("says "+says, "x"))
		w.is(err, fencing.ErrHistory)
	}
}
