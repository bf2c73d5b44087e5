package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// asRole gives a pool whose sessions have the rights of a group role only.
func asRole(t *testing.T, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set session authorization "+role)
		return err
	}
	p, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestTheStatusTellsWhatWaitsAndWhyWithTheMonitorsRights(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	monitor := asRole(t, pool, "fenceline_monitor")
	read := func() Status {
		t.Helper()
		st, err := ReadStatus(bg, monitor, "")
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "q")
	p.publish("a", "1", "2", "3")
	if st := read(); st.Backlog != 3 || st.More || st.Published || st.Oldest <= 0 || st.Holder != "" {
		t.Errorf("before the first relay: %+v", st)
	}

	kafka.answer(refusing("poison"))
	q.publish("a", "fine", "poison", "behind")
	p.publish("missing", "1", "2")
	cfg := quick()
	cfg.Name = "the one"
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the rest is published", func() bool {
		st := read()
		return st.Backlog == 2 && len(st.Held) == 1 && len(st.Forks) == 1
	})
	st := read()
	if h := st.Held[0]; h.Topic != "a" || h.Key != "q" || h.Seq != 2 || h.Reason != "poison" || h.Since.IsZero() {
		t.Errorf("held: %+v", h)
	}
	if f := st.Forks[0]; f.Topic != "missing" || f.Backlog != 2 || f.Reason == "" || f.Since.IsZero() {
		t.Errorf("fork: %+v", f)
	}
	if !strings.HasPrefix(st.Holder, "the one ") || len(st.Instances) != 1 || len(st.Instances[0].Shards) != 64 || len(st.Unowned) != 0 || !st.LeaseExpires.After(st.Now) || st.Token == 0 || !st.Published || st.CursorAge > time.Minute {
		t.Errorf("%+v", st)
	}
	straggler := newProducer(t, pool, "s").begin().enter().append("a", "straggler")
	for r.cursor().low < query[int64](t, pool, "select last_value from fenceline.outbox_pos") {
		p.publish("a", "more")
		r.passed(2)
	}
	eventually(t, "it is published", func() bool { return read().Backlog == 2 })
	r.end()
	straggler.commit()
	if st := read(); st.Backlog != 3 || st.Holder != "" {
		t.Errorf("with a straggler below the low bound, and no relay: %+v", st)
	}
}

// The relay's own login has the relay's rights and no others.
func TestTheRelayRunsWithTheRelaysRightsOnly(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, asRole(t, pool, "fenceline_relay"), kafka, quick())
	kafka.answer(refusing("poison"))
	p := newProducer(t, pool, "k")
	p.publish("missing", "x")
	p.publish("a", "1", "poison")
	eventually(t, "it publishes", func() bool { return kafka.has("a", "1") })
	eventually(t, "it stores holds and forks", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_held") == 1 && query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1
	})
	r.end()

	err := runFor(t, asRole(t, pool, "fenceline_monitor"), kafka, quick())
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("with a monitor's rights Run gives %v", err)
	}
}
