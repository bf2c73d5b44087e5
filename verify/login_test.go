package verify_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/verify"
)

// Whoever reads the findings in a pager keeps the transaction waiting.
func TestTheTimesThatALoginHasSetEndNoComparison(t *testing.T) {
	t.Parallel()
	w := story(t)
	cfg := w.pool.Config()
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "50"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	waited := false
	report, _ := w.verify(func(c *verify.Config) {
		c.Producer = pool
		c.Progress = func(stage string, _, _ int64) {
			if stage == "outbox" && !waited {
				waited = true
				time.Sleep(500 * time.Millisecond)
			}
		}
	})
	if !waited || report.Total() != 0 {
		t.Errorf("%+v", report)
	}
}

// Nor the comparison with a consumer, whose guards may be millions.
func TestTheTimesThatALoginHasSetEndNoComparisonWithAConsumer(t *testing.T) {
	t.Parallel()
	w := story(t)
	cfg := w.pool.Config()
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "2000"
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "2000"
	cfg.ConnConfig.RuntimeParams["application_name"] = t.Name()[:20]
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table fenceline.guard in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	found := make(chan error, 1)
	go func() {
		report, err := verify.Run(t.Context(), verify.Config{Producer: w.pool, Log: w.log, Dir: t.TempDir(), Consumers: []verify.Consumer{{Name: service, Pool: pool}}})
		if err == nil && report.Total() != 0 {
			err = fmt.Errorf("it found %+v", report)
		}
		found <- err
	}()
	pgtest.WaitTrue(t, w.pool, "select exists (select from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '2500 ms')", t.Name()[:20])
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err != nil {
		t.Error(err)
	}
}
