package relay

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// plan is a node of what EXPLAIN says.
type plan struct {
	Node     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []plan `json:"Plans"`
}

func (p plan) walk(visit func(path []plan)) {
	var down func(p plan, path []plan)
	down = func(p plan, path []plan) {
		path = append(path, p)
		visit(path)
		for _, c := range p.Plans {
			down(c, path)
		}
	}
	down(p, nil)
}

// explain gives the generic plan of a statement, as the reader's session makes it.
func explain(t *testing.T, conn *pgx.Conn, name, sql string, args string) plan {
	t.Helper()
	if _, err := conn.Exec(bg, "prepare "+name+" as "+sql); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var text []byte
	if err := conn.QueryRow(bg, "explain (format json, costs off) execute "+name+"("+args+")", pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var out []struct{ Plan plan }
	if err := json.Unmarshal(text, &out); err != nil || len(out) != 1 {
		t.Fatalf("%s: %v", text, err)
	}
	t.Logf("%s: %s", name, compact(out[0].Plan))
	return out[0].Plan
}

func compact(p plan) string {
	s := p.Node
	if p.Index != "" {
		s += "[" + p.Index + "]"
	}
	var in []string
	for _, c := range p.Plans {
		in = append(in, compact(c))
	}
	if in != nil {
		s += "(" + strings.Join(in, ", ") + ")"
	}
	return s
}

// checkPlan wants each scan of the outbox by one of the indexes, and below a
// Limit before anything sorts it.
func checkPlan(t *testing.T, name string, p plan, indexes ...string) {
	t.Helper()
	scans := 0
	p.walk(func(path []plan) {
		at := path[len(path)-1]
		if at.Relation == "" || !strings.HasPrefix(at.Relation, "outbox") {
			return
		}
		scans++
		fits := false
		for _, i := range indexes {
			fits = fits || strings.Contains(at.Index, i)
		}
		if at.Node != "Index Scan" || !fits {
			t.Errorf("%s reads the outbox by %s %s, want an index scan on one of %q", name, at.Node, at.Index, indexes)
		}
		for i := len(path) - 2; i >= 0; i-- {
			if path[i].Node == "Limit" {
				return
			}
			if strings.Contains(path[i].Node, "Sort") {
				t.Errorf("%s sorts the window", name)
			}
		}
		t.Errorf("%s reads the outbox without a limit", name)
	})
	if scans == 0 {
		t.Errorf("%s: no scan of the outbox in the plan", name)
	}
}

// The statistics are chosen to mislead: in one table every row is of one
// transaction and one topic; in others each row has a transaction, or a topic,
// of its own; one has none at all, and one says that the table is empty.
func TestThePlansReadAnIndexInOrderWhateverTheStatisticsSay(t *testing.T) {
	t.Parallel()
	fill := `insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, xid, topic, key, shard, epoch, token, seq, source, history)
		select gen_random_uuid(), 'a', 'k', 't', '', %xid%, 'a', 'k' || n % 100, n % 64, 1, 1, n, 's', case when n = 1 then 1 end from generate_series(1, 20000) n`
	for name, prepare := range map[string][]string{
		"one transaction, one topic": {strings.ReplaceAll(fill, "%xid%", "'700'"), "analyze fenceline.outbox"},
		"a transaction for each row": {strings.ReplaceAll(fill, "%xid%", "(700 + n)::text::xid8"), "analyze fenceline.outbox"},
		"a topic for each row":       {strings.ReplaceAll(strings.Replace(fill, "'a', 'k' ||", "'t' || n, 'k' ||", 1), "%xid%", "(700 + n / 10)::text::xid8"), "analyze fenceline.outbox"},
		"no statistics":              {strings.ReplaceAll(fill, "%xid%", "(700 + n / 10)::text::xid8")},
		"seems empty":                {"analyze fenceline.outbox", strings.ReplaceAll(fill, "%xid%", "(700 + n / 10)::text::xid8")},
		"several partitions": {"create table fenceline.outbox_1 partition of fenceline.outbox for values from (1099511627776) to (2199023255552)",
			"alter table fenceline.outbox disable trigger all", strings.ReplaceAll(fill, "%xid%", "(700 + n / 10)::text::xid8"), "analyze fenceline.outbox"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := pgmigrated.Pool(t)
			for _, sql := range prepare {
				if _, err := pool.Exec(bg, sql); err != nil {
					t.Fatal(err)
				}
			}
			conn := readerConn(t, pool)
			sql := newStatements("fenceline")
			flow := "4000, 8388608, '{x}', false, -1"
			poll := explain(t, conn, "poll", sql.poll, flow+", '700:900:750,760', 10000, '{750,760}'")
			checkPlan(t, "poll", poll, "xid_pos", "pkey")
			// Both indexes, each in its place.
			both := map[string]bool{}
			poll.walk(func(path []plan) {
				at := path[len(path)-1]
				switch {
				case strings.Contains(at.Index, "xid_pos"):
					both["xid"] = strings.Contains(at.Cond, "ROW(xid, pos)")
				case strings.Contains(at.Index, "pkey"):
					both["pos"] = strings.Contains(at.Cond, "pos >") && !strings.Contains(at.Cond, "xid")
				}
			})
			if !both["xid"] || !both["pos"] {
				t.Errorf("poll does not read stragglers by (xid, pos) and the rest by pos: %v", both)
			}
			checkPlan(t, "poll without stragglers", explain(t, conn, "poll_fresh", sql.pollFresh, flow+", '700:900:750,760', 10000"), "pkey")
			checkPlan(t, "old", explain(t, conn, "old", sql.old, flow+", '{750,760}', 10, 10000"), "xid_pos")
			checkPlan(t, "fresh", explain(t, conn, "fresh", sql.fresh, flow+", '700:700:', '900:900:', 10, 20000"), "pkey")
			checkPlan(t, "light", explain(t, conn, "light", sql.light, flow+", '700:700:', '900:900:', 10, 20000"), "pkey")
		})
	}
}

func readerConn(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := dial(bg, pool, readerSettings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
