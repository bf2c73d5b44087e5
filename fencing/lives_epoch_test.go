package fencing_test

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestAnEpochNeverComesBack(t *testing.T) {
	t.Parallel()
	for name, scenario := range neverComesBack {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(newWorld(t))
		})
	}
}

// In each the clock has been set back since the epoch was allotted: a clock
// that runs would hide the mistake.
var neverComesBack = map[string]func(*world){
	"when it is opened again": func(w *world) {
		a := w.worker("a")
		pos := w.ahead(a)
		a.close(pos)
		w.above(pos.Epoch, a.open("k"))
	},
	"after an open that was rolled back": func(w *world) {
		a := w.worker("a")
		pos := w.ahead(a)
		a.close(pos)
		conn := w.session(w.producer)
		tx, err := conn.Begin(ctx)
		w.ok(err)
		var epoch int64
		w.ok(tx.QueryRow(ctx, "select epoch from fenceline.open('k')").Scan(&epoch))
		w.above(pos.Epoch, epoch)
		w.ok(tx.Rollback(ctx))
		_, err = a.Acquire(ctx, "k", long)
		w.is(err, fencing.ErrClosed)
		_, err = a.commit(fencing.Position{Key: "k", Epoch: epoch, Token: 1}, content("s", "x"))
		w.is(err, fencing.ErrUnconfirmable)
		w.above(pos.Epoch, a.open("k"))
	},
	"when its tombstone was swept": func(w *world) {
		a, op := w.worker("a"), w.operator()
		pos := w.ahead(a)
		a.close(pos)
		w.published()
		if r := op.sweep(soon); r.Tombstones != 1 {
			w.Fatalf("swept %+v", r)
		}
		w.above(pos.Epoch, a.acquire("k").Position().Epoch)
	},
	"when its tombstone is swept while it is opened": sweptWhileOpened,
}

func sweptWhileOpened(w *world) {
	for _, opener := range []string{"select epoch from fenceline.open('k')", "select epoch from fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '5 s')"} {
		a := w.worker("a")
		pos := w.ahead(a)
		a.close(pos)
		w.published()
		sweeper := w.session(w.dsn)
		tx, err := sweeper.Begin(ctx)
		w.ok(err)
		w.exec("delete from fenceline.receipt") // their floor is another matter
		var gone int
		w.ok(tx.QueryRow(ctx, `select tombstones from fenceline.sweep_tombstones('0', '0', 10, '-infinity', 0, 'infinity', 0, false)`).Scan(&gone))
		if gone != 1 {
			w.Fatalf("%d tombstones swept", gone)
		}
		conn := w.session(w.producer)
		opened := make(chan int64, 1)
		go func() {
			var epoch int64
			if err := conn.QueryRow(ctx, opener).Scan(&epoch); err != nil {
				epoch = -1
			}
			opened <- epoch
		}()
		pgtest.WaitBlocked(w, w.admin, conn.PgConn().PID(), sweeper.PgConn().PID())
		w.ok(tx.Commit(ctx))
		w.above(pos.Epoch, <-opened)
		w.exec("delete from fenceline.lease; delete from fenceline.fence; delete from fenceline.head; delete from fenceline.turn")
	}
}

// ahead is a life of k that began in what is now the future.
func (w *world) ahead(k *worker) fencing.Position {
	w.Helper()
	pos := k.acquire("k").Position()
	pos.Epoch += int64(time.Hour / time.Microsecond)
	w.exec("update fenceline.fence set epoch = $1 where key = 'k'", pos.Epoch)
	w.exec("update fenceline.lease set epoch = $1 where key = 'k'", pos.Epoch)
	k.commitTo(pos, "s", "results")
	return pos
}

func (w *world) above(old, epoch int64) {
	w.Helper()
	if epoch <= old {
		w.Fatalf("epoch %d comes after %d", epoch, old)
	}
}

func TestNoHandBringsAnEpochBack(t *testing.T) {
	t.Parallel()
	noHandBringsAnEpochBack(newWorld(t))
}

func noHandBringsAnEpochBack(w *world) {
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	refused := func(sql string, args ...any) {
		w.Helper()
		_, err := w.admin.Exec(ctx, sql, args...)
		if got := sqlstate(err); got != "FL009" && got != "23505" {
			w.Errorf("%s: %s, want FL009 or 23505", sql, got)
		}
	}
	const restore = "insert into fenceline.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token, closed_at) values ('k', $1, 1, 0, 0, 0, $2)"
	refused(restore, pos.Epoch, nil) // the row is there
	a.close(pos)
	refused("update fenceline.fence set closed_at = null where key = 'k'")
	w.published()
	if r := op.sweep(soon); r.Tombstones != 1 {
		w.Fatalf("swept %+v", r)
	}
	refused(restore, pos.Epoch, nil)
	refused(restore, pos.Epoch, time.Now()) // the tombstone itself
	refused("with n as (insert into fenceline.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token) values ('k', 1, 1, 0, 0, 0)) select")
	w.exec("insert into fenceline.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token) values ('k', 1, 0, 0, 0, 0)")
	refused("update fenceline.fence set epoch = $1 where key = 'k'", pos.Epoch)
	_, err := a.commit(pos, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
}
