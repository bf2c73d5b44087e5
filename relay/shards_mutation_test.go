package relay

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// Each rule of the function that stores cursors, taken away, and what must then
// be found: a cursor that another instance's shard was moved by.
func TestEachRuleOfTheCheckpointIsNeeded(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]struct{ piece, with string }{
		"as it is":                          {"", ""},
		"a checkpoint without token":        {"on f.key = w.key and f.epoch = w.epoch and f.max_issued_token = w.token", "on f.key = w.key"},
		"a lost shard that takes no other":  {"if locked is distinct from cardinality(p_keys)::bigint or locked = 0 then", "if locked = 0 then"},
		"shards whose leases are not shown": {"where s::smallint <> all (mine)", "where false"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := pgmigrated.Pool(t)
			if m.piece != "" {
				mutate(t, pool, "relay_checkpoint", m.piece, m.with)
			}
			if found := overtaken(t, pool); found != (m.piece != "") {
				t.Errorf("an overtaken instance has stored a cursor: %v", found)
			}
		})
	}
}

// overtaken has an instance with two shards store its cursors, in each way that
// it may try, after one of the shards has become another's.
func overtaken(t *testing.T, pool *pgxpool.Pool) (moved bool) {
	t.Helper()
	var epochs, tokens [2]int64
	for n := range 2 {
		if err := pool.QueryRow(bg, "select epoch, token from fenceline.relay_acquire($1, 'one', interval '1 hour', gen_random_uuid(), interval '1 s')", ShardKey(n)).Scan(&epochs[n], &tokens[n]); err != nil {
			t.Fatal(err)
		}
	}
	seize(t, pool, 1, time.Hour)
	for _, with := range []int{2, 1} { // the leases that are shown
		_, _ = pool.Exec(bg, `select fenceline.relay_checkpoint($1, $2, $3, '[{"shards": [0, 1], "s1": "3:3:", "low": 0, "last_pos": 0}]', '[]', '[]', null, true)`,
			[]string{ShardKey(0), ShardKey(1)}[:with], epochs[:with], tokens[:with])
	}
	return query[int](t, pool, "select count(*) from fenceline.relay_checkpoint where 1 = any (shards)") > 0
}
