package verify_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

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
