package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What is known of a topic is looked up in the database first. Where that doesn't
// answer, nobody has to look at the broker.
func TestADatabaseThatDoesNotAnswerIsNoOutageOfTheBroker(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	cfg, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		tries.Add(1)
		return errors.New("the database is away")
	}
	pool, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var log lines
	c := quick()
	c.Logger = log.logger()
	c.Hooks.OutageBegan = func(err error) { t.Errorf("the broker is said not to acknowledge: %v", err) }
	sql := newStatements("fenceline")
	s := &session{cfg: c, log: c.Logger, sql: &sql, pool: pool, pub: newMemory(t, "a")}
	s.outages.s = s
	soft, cancel := context.WithCancel(bg)
	defer cancel()
	s.soft = soft
	var done sync.WaitGroup
	done.Go((&topic{s: s, name: "a"}).find)
	eventually(t, "it is tried some times", func() bool { return tries.Load() > 3 })
	cancel()
	done.Wait()
	if n := log.count("cannot look up what is known of a topic"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
