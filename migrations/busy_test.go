package migrations

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
)

// A commit that has passed its gate and has its events still to append is let through
// by a step that alters the tables on its way, up and down.
func TestAStepLetsACommitPassThatIsBetweenItsGateAndItsEvents(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct{ from, to int }{{4, 5}, {5, 4}, {9, 10}, {10, 9}} {
		t.Run(fmt.Sprintf("from %d to %d", c.from, c.to), func(t *testing.T) {
			b := setup(t)
			m := b.migrator(embedded, func(c *Config) { c.LockTimeout = time.Minute })
			b.up(m, UpOptions{Parts: []Part{Producer}, To: c.from})
			b.exec(`select @schema@.acquire('k', 'a', interval '1 h', gen_random_uuid(), interval '1 s')`)
			epoch := b.one(`select epoch::text from @schema@.fence`)
			conn := dial(t, b.dsn, "", "")
			run := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(ctx, schema.Expand(sql, b.schema)); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			run(`set deadlock_timeout = '10ms'`) // were they to wait for each other, it is the commit that would be ended
			run(`begin`)
			run(`select @schema@.enter('k', ` + epoch + `, 1, 's', 'a', sha256('x'), interval '10 min')`)
			stepped := make(chan error, 1)
			go func() {
				var err error
				if c.to > c.from {
					_, err = m.Up(ctx, UpOptions{Parts: []Part{Producer}, To: c.to})
				} else {
					_, err = m.Down(ctx, DownOptions{Part: Producer, To: c.to, Force: true})
				}
				stepped <- err
			}()
			b.until("the step waits for the commit", fmt.Sprintf(`exists (select from pg_stat_activity where datname = current_database() and %d = any (pg_blocking_pids(pid)))`, conn.PgConn().PID()))
			run(`select @schema@.append('k', ` + epoch + `, 1, 's', 't', array[gen_random_uuid()], array['a'], array['t'], array[null]::text[], array['s'], array[null]::text[], array[null]::text[], array['x']::bytea[])`)
			run(`commit`)
			if err := <-stepped; err != nil {
				t.Fatal(err)
			}
			equal(t, b.one(`select count(*)::text from @schema@.outbox`), "1")
		})
	}
}
