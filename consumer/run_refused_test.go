package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// login gives a pool of a login with the consumer's rights and no others. Roles
// are the whole server's, so its name is the database's.
func (b *bench) login() (pool *pgxpool.Pool, name string) {
	b.t.Helper()
	cfg := b.pool.Config().Copy()
	name = "login_" + cfg.ConnConfig.Database
	b.exec("create role " + name + " login password 'right'")
	b.t.Cleanup(func() {
		b.exec("drop owned by " + name)
		b.exec("drop role " + name)
	})
	b.exec("grant fenceline_consumer to " + name)
	b.exec("grant select, insert on applied to " + name)
	cfg.ConnConfig.User, cfg.ConnConfig.Password = name, "right"
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(pool.Close)
	return pool, name
}

// runAs starts Run with a pool of its own and gives what it returns.
func (b *bench) runAs(pool *pgxpool.Pool, source consumer.Source, cfg consumer.Config, h consumer.Handler) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, pool, source, cfg, h) }()
	return done
}

func (b *bench) refused(done <-chan error, what string) {
	b.t.Helper()
	select {
	case err := <-done:
		var r *consumer.AccessError
		if !errors.As(err, &r) || !strings.Contains(err.Error(), what) {
			b.t.Fatalf("Run: %v; want a AccessError with %q", err, what)
		}
	case <-time.After(patience):
		b.t.Fatal("Run goes on trying what no waiting gives it")
	}
	if got := b.one("select (select count(*) from fenceline.dead) || ' ' || (select count(*) from fenceline.parked)"); got != "0 0" {
		b.t.Errorf("dead and parked: %s, though no event was at fault", got)
	}
}

func TestALoginThatIsRefusedWhileRunningEndsRun(t *testing.T) {
	b := newBench(t)
	pool, name := b.login()
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	done := b.runAs(pool, log.source(), b.config(), b.apply("x"))
	b.eventually("it has begun", func() bool { return len(b.applied("")) == 3 })
	b.exec("alter role " + name + " nologin")
	b.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", name)
	pgtest.WaitTrue(t, b.pool, "select not exists (select from pg_stat_activity where usename = $1)", name)
	log.publish(events("t", "a", 4, 5)...)
	b.refused(done, "give the pool the right user and password")
	b.want("", effects("a", 1, 3)...)
}

func TestARightThatTheHandlerLacksEndsRunAndIsBlamedOnNoEvent(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBench(t)
			pool, name := b.login()
			b.exec("revoke all on applied from " + name)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 3)...)
			cfg := b.config()
			cfg.Policy = policy
			b.refused(b.runAs(pool, log.source(), cfg, b.apply("x")), "grant this login")
		})
	}
}

// COMMIT is where a deferred trigger runs, with the handler's rights.
func TestARightThatADeferredTriggerLacksEndsRunAndIsBlamedOnNoEvent(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBench(t)
			pool, _ := b.login()
			b.exec("create table journal (key text)")
			b.exec("create function journal() returns trigger language plpgsql as $$ begin insert into journal values (new.key); return null; end $$")
			b.exec("create constraint trigger journal after insert on applied deferrable initially deferred for each row execute function journal()")
			log := newMemory("t")
			log.publish(events("t", "a", 1, 3)...)
			cfg := b.config()
			cfg.Policy = policy
			b.refused(b.runAs(pool, log.source(), cfg, b.apply("x")), "grant this login")
			b.want("")
		})
	}
}

func TestARowThatAPolicyOfTheTableRefusesIsTheEventsOwnFailure(t *testing.T) {
	b := newBench(t)
	pool, name := b.login()
	b.exec("alter table applied enable row level security")
	b.exec("create policy p on applied to " + name + " using (true) with check (seq <> 2)")
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	cfg := b.config()
	cfg.Policy = consumer.State
	done := b.runAs(pool, log.source(), cfg, b.apply("x"))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.want("", "a/1", "a/3")
	select {
	case err := <-done:
		t.Errorf("Run: %v", err)
	default:
	}
}

// Two members of different logins would have a guard each for the same key.
func TestALoginWhoseSessionsWouldStoreKeysAsOthersIsRefused(t *testing.T) {
	b := newBench(t)
	pool, name := b.login()
	b.exec("alter role " + name + " set client_encoding = 'LATIN1'")
	pool.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	run := consumer.Run(ctx, pool, newMemory("t").source(), b.config(), b.apply("x"))
	_, operate := consumer.NewOperator(ctx, pool, consumer.OperatorConfig{Consumer: "test"})
	for what, err := range map[string]error{"Run": run, "NewOperator": operate} {
		if err == nil || !strings.Contains(err.Error(), "client_encoding of the session is LATIN1") || !strings.Contains(err.Error(), "alter role") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
