package fencing_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

// What an operator decides is on the disk when he is told.
func TestWhatAnOperatorDecidesIsDurableWhateverItsLoginHasSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dsn := pgmigrated.Login(w, w.dsn, schema.KindOperator)
	w.exec("alter role " + pgx.Identifier{w.loginOf(dsn)}.Sanitize() + " set synchronous_commit = off")
	w.exec(`create table public.seen (what text, durability text);
		create function public.see() returns trigger language plpgsql security definer as
			$$ begin insert into public.seen values (tg_table_name, current_setting('synchronous_commit')); return null; end $$;
		create trigger see after update on fenceline.fence for each row execute function public.see();
		create trigger see after update on fenceline.lease for each row execute function public.see();
		create trigger see after update on fenceline.history for each row execute function public.see()`)
	o, err := fencing.NewOperator(ctx, pgtest.Connect(w, dsn), "")
	w.ok(err)
	w.worker("a").acquire("k")
	w.exec("truncate public.seen")
	w.ok(o.SetOwner(ctx, "k", w.loginOf(w.producer), "me"))
	_, _, _, err = o.Expire(ctx, "k", "me")
	w.ok(errors.Join(err, o.OnNewHistory(ctx, fencing.Bump, "me"), o.OnNewHistory(ctx, fencing.Refuse, "me"), o.Confirm(ctx, "me")))
	_, err = o.Bump(ctx, 0, "me")
	w.ok(err)
	if got := value[string](w, "select string_agg(distinct what, ' ' order by what) || ': ' || string_agg(distinct durability, ' ') from public.seen"); got != "fence history lease: on" {
		t.Errorf("%s", got)
	}
}

// An operator's login is often set to write nothing unless told so, and the
// functions rest on READ COMMITTED whatever it is set to.
func TestAnOperatorMendsWhateverItsLoginBeginsTransactionsWith(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		anOperatorMends(newWorld(t), isolation)
	}
}

func anOperatorMends(w *world, isolation string) {
	dsn := pgmigrated.Login(w, w.dsn, schema.KindOperator)
	login := pgx.Identifier{w.loginOf(dsn)}.Sanitize()
	w.exec("alter role " + login + " set default_transaction_isolation = '" + isolation + "'")
	w.exec("alter role " + login + " set default_transaction_read_only = on")
	pool := pgtest.Connect(w, dsn)
	o, err := fencing.NewOperator(ctx, pool, "")
	w.ok(err)
	a := w.worker("a")
	a.acquire("k")

	w.ok(o.SetOwner(ctx, "k", w.loginOf(w.producer), "me"))
	holder, _, ended, err := o.Expire(ctx, "k", "me")
	w.ok(err)
	if holder != "a" || !ended {
		w.Errorf("%s: ended %v of %q", isolation, ended, holder)
	}
	w.ok(errors.Join(o.OnNewHistory(ctx, fencing.Bump, "me"), o.OnNewHistory(ctx, fencing.Refuse, "me"), o.Confirm(ctx, "me")))

	// A lease that is granted while the bump waits is one of before, too.
	granted := w.session(w.producer)
	_, err = granted.Exec(ctx, "begin; select fenceline.acquire('l', 'b', interval '1 h', null, interval '1 s', false, null)")
	w.ok(err)
	bumped := make(chan error, 1)
	go func() {
		_, err := o.Bump(ctx, 0, "me")
		bumped <- err
	}()
	pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where usename = $1 and wait_event_type = 'Lock')", w.loginOf(dsn))
	_, err = granted.Exec(ctx, "commit")
	w.ok(errors.Join(err, <-bumped))
	if value[bool](w, "select expires_at > clock_timestamp() from fenceline.lease where key = 'l'") {
		w.Errorf("%s: a lease of before the bump goes on", isolation)
	}
}
