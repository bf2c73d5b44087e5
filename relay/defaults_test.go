package relay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// poolWith is a pool on the same database for a login of which something is set.
func poolWith(t testing.TB, pool *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config().Copy()
	change(cfg)
	other, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

// What is set for a login, a database or a server is meant for others. A relay, and
// what its operators do, is the same under all of it.
func TestWhateverIsSetForTheLoginEventsArePublishedKeptAndRemovedAsEver(t *testing.T) {
	t.Parallel()
	set := func(pairs ...string) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) {
			for pair := range slices.Chunk(pairs, 2) {
				c.ConnConfig.RuntimeParams[pair[0]] = pair[1]
			}
		}
	}
	mode := func(m pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
	}
	for name, change := range map[string]func(*pgxpool.Config){
		"a pool of one connection":           func(c *pgxpool.Config) { c.MaxConns = 1 },
		"a stricter isolation":               set("default_transaction_isolation", "serializable"),
		"a server that is full":              set("default_transaction_read_only", "on"),
		"other notations":                    set("TimeZone", "Asia/Tokyo", "DateStyle", "SQL, DMY", "IntervalStyle", "sql_standard", "bytea_output", "escape", "extra_float_digits", "-15"),
		"another path":                       set("search_path", "public", "array_nulls", "off", "row_security", "off", "transform_null_equals", "on"),
		"a pooler's mode: exec":              mode(pgx.QueryExecModeExec),
		"a pooler's mode: simple protocol":   mode(pgx.QueryExecModeSimpleProtocol),
		"a pooler's mode: describe":          mode(pgx.QueryExecModeCacheDescribe),
		"a mode without a cache of any kind": mode(pgx.QueryExecModeDescribeExec),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, kafka := fresh(t, "a")
			pool := poolWith(t, own, change)
			const key = "katalog/süd"
			p := newProducer(t, own, key)
			p.publish("a", "x", "poison")
			kafka.answer(refusing("poison"))
			held := make(chan HeldStream, 1)
			cfg := quick()
			cfg.Hooks.Held = func(s HeldStream) { held <- s }
			r := startRelay(t, pool, kafka, cfg)
			if s := receive(t, "the stream is held", held); s.Key != key || s.Seq != 2 {
				t.Errorf("held: %+v", s)
			}
			eventually(t, "it is stored that the stream is held", func() bool {
				return query[int](t, own, "select count(*) from fenceline.relay_held where key = $1", key) == 1
			})
			operator, err := NewOperator(bg, pool, "")
			if err != nil {
				t.Fatal(err)
			}
			if s, err := operator.Skip(bg, "a", key, 0, By{Who: "me", Why: "süß"}); err != nil || s.From != 2 {
				t.Errorf("skip: %+v, %v", s, err)
			}
			eventually(t, "nothing is held", func() bool { return query[int](t, own, "select count(*) from fenceline.relay_held") == 0 })
			r.end()
			if _, again, next := firsts(t, kafka.logs["a"]); next[streamKey{"a", key}] != 2 {
				t.Errorf("published up to %v, %d second copies", next, again)
			}
			if drained, err := Drain(bg, pool, kafka, cfg); err != nil || drained.Held != 0 {
				t.Errorf("drain: %+v, %v", drained, err)
			}
			if done, err := Republish(bg, pool, kafka, RepublishConfig{Who: "me", Key: key}); err != nil || done.Events != 1 || done.Markers != 1 {
				t.Errorf("republish: %+v, %v", done, err)
			}
			if st, err := ReadStatus(bg, pool, ""); err != nil || st.Backlog != 0 {
				t.Errorf("status: backlog %d, %v", st.Backlog, err)
			}
			for _, paused := range []bool{true, false} {
				if changed, err := SetPause(bg, pool, "", paused, "me", ""); err != nil || !changed {
					t.Errorf("pause %t: %t, %v", paused, changed, err)
				}
			}
			keep := RetentionConfig{Keep: time.Nanosecond, RotateAge: time.Nanosecond, LockTimeout: 5 * time.Second}
			eventually(t, "the partition is removed", func() bool {
				report, err := Retain(bg, pool, "", keep)
				if err != nil {
					t.Fatal(err)
				}
				return slices.Contains(report.Dropped, "outbox_0")
			})
			name := slot(t, own)
			confirmAll(t, own, name)
			if _, err := Follow(bg, pool, followed(name)); err != nil {
				t.Errorf("follow: %v", err)
			}
			if err := operator.AcceptTopic(bg, "a", 7, true, By{Who: "me"}); err != nil {
				t.Errorf("accept: %v", err)
			}
			if _, err := operator.RetireTopic(bg, "a", By{Who: "me"}); !errors.Is(err, ErrNotPossible) {
				t.Errorf("a topic that isn't refused is retired: %v", err)
			}
		})
	}
}

// A session that is idle for as long as nothing is published would be ended, and
// with it what was published since the last checkpoint be published again; and a
// time that was meant for others' statements would end the same page for ever.
func TestTheSessionsOfARelayAreBoundByNoTimeThatWasSetForOthers(t *testing.T) {
	t.Parallel()
	own, _ := fresh(t)
	names := []string{"idle_session_timeout", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}
	if query[bool](t, own, "select exists (select from pg_settings where name = 'transaction_timeout')") {
		names = append(names, "transaction_timeout")
	}
	pool := poolWith(t, own, func(c *pgxpool.Config) {
		for _, name := range names {
			c.ConnConfig.RuntimeParams[name] = "10min"
		}
	})
	for whose, settings := range map[string]string{"reader": readerSettings, "checkpoint": writerSettings, "listener": listenerSettings} {
		conn, err := dial(bg, pool, settings)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			var set string
			if err := conn.QueryRow(bg, "select current_setting($1)", name).Scan(&set); err != nil || set != "0" {
				t.Errorf("the %s's %s is %q, %v", whose, name, set, err)
			}
		}
		hangUp(conn)
	}
}
