package relay

import (
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// Held streams and republishes read by an index, in order, whatever the
// statistics say: a stream can be long, and the outbox is.
func TestAStreamIsReadByItsIndexWhateverTheStatisticsSay(t *testing.T) {
	t.Parallel()
	fill := `insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, history)
		select gen_random_uuid(), 'a', 'k', 't', '', %topic%, %key%, 0, 1, 1, n, 's', case when n = 1 then 1 end from generate_series(1, 5000) n`
	of := func(topic, key string) string {
		return strings.NewReplacer("%topic%", topic, "%key%", key).Replace(fill)
	}
	for name, prepare := range map[string][]string{
		"one stream":          {of("'a'", "'k'"), "analyze fenceline.outbox"},
		"a key for each row":  {of("'a'", "'k' || n"), "analyze fenceline.outbox"},
		"a topic for a tenth": {of("'t' || n % 10", "'k' || n % 7"), "analyze fenceline.outbox"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgmigrated.Pool(t)
			for _, sql := range prepare {
				if _, err := pool.Exec(bg, sql); err != nil {
					t.Fatal(err)
				}
			}
			conn := readerConn(t, pool)
			sql, again := newStatements("fenceline"), newRepublishStatements("fenceline")
			const stream = "topic_key_epoch_seq"
			checkPlan(t, "stream", explain(t, conn, "stream", sql.stream, "4000, 8388608, 'a', 'k', 1, 100, 100, '700:900:'"), stream)
			checkPlan(t, "by stream", explain(t, conn, "bystream", again.byStream, "1000, 4194304, 'a', 'k', 1, 100, 0, 100000, null, null"), stream)
			checkPlan(t, "by pos", explain(t, conn, "bypos", again.byPos, "1000, 4194304, 100, 100000, '', '', null, null"), "pkey")
			checkPlan(t, "by pos of one", explain(t, conn, "byposone", again.byPos, "1000, 4194304, 100, 100000, 'a', 'k', null, null"), "pkey")
		})
	}
}
