package relay

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgtest"
)

// lateCommit has a transaction commit an event into a partition while the drop
// of that partition waits for its lock, and gives the drop's answer.
func lateCommit(t testing.TB, pool *pgxpool.Pool, kafka *memory) string {
	t.Helper()
	p, slow := newProducer(t, pool, "k"), newProducer(t, pool, "slow")
	p.publish("t", "a")
	open := slow.begin().enter().append("t", "late")
	rotateUnder(t, pool)
	p.publish("t", "b")
	publishAll(t, pool, kafka)
	if got := parts(t, pool); got != "0:- 1:active" {
		t.Fatalf("before the lock everything looks published: %s", got)
	}
	conn, err := pool.Acquire(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	said := make(chan string, 1)
	go func() {
		var why string
		if err := conn.QueryRow(bg, "select fenceline.outbox_drop(0, '0', '1 min')").Scan(&why); err != nil {
			why = err.Error()
		}
		said <- why
	}()
	pgtest.WaitBlocked(t, pool, conn.Conn().PgConn().PID(), open.conn.PgConn().PID())
	open.commit()
	return receive(t, "the answer of the drop", said)
}

// appendsBehindARotation has a transaction append, and append again after a
// rotation, and gives what the second append says.
func appendsBehindARotation(t testing.TB, pool *pgxpool.Pool, _ *memory) string {
	t.Helper()
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	open := newProducer(t, pool, "slow").begin().enter().append("t", "b")
	retain(t, pool, RetentionConfig{RotateAge: 1, LockTimeout: minLockTimeout, Tries: 1})
	if err := open.tryAppend("t", "c"); err != nil {
		return err.Error()
	}
	return ""
}

// rotatesByHalves has the two steps of a rotation in one transaction that is
// rolled back, and gives what the next append says.
func rotatesByHalves(t testing.TB, pool *pgxpool.Pool, _ *memory) string {
	t.Helper()
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	w := p.begin()
	_, _ = w.conn.Exec(bg, "select pg_current_xact_id()")
	for range 2 {
		_, _ = w.conn.Exec(bg, "select fenceline.outbox_rotate('1 us', 1, '10 s')")
	}
	w.rollback()
	if err := p.begin().enter().tryAppend("t", "b"); err != nil {
		return err.Error()
	}
	return ""
}

// Each rule of the retention, taken out of the database's functions, and the
// scenario that shows why it is there.
func TestEachRuleOfTheRetentionIsNeeded(t *testing.T) {
	t.Parallel()
	const second = "  end;\n  why := @schema@._outbox_kept(at.part, at.hi, p_keep);\n  if why is not null then return why; end if;\n  execute"
	for name, c := range map[string]struct {
		function, old, new string
		scenario           func(testing.TB, *pgxpool.Pool, *memory) string
		right, wrong       string
	}{
		"drop checked before the lock":         {"outbox_drop", second, "  end;\n  execute", lateCommit, KeptUnpublished, "dropped"},
		"running transactions not looked at":   {"_outbox_kept", "if found_one then return 'unpublished'; end if;", "", lateCommit, KeptUnpublished, "dropped"},
		"switch under those who have appended": {"outbox_rotate", "lock table only @schema@.outbox in share mode;", "null;", appendsBehindARotation, "", "no partition of relation"},
		"both steps in one transaction":        {"outbox_rotate", "if pg_current_xact_id_if_assigned() is not null then", "if false then", rotatesByHalves, "", "no partition of relation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "t")
			if got := c.scenario(t, pool, kafka); got != c.right {
				t.Errorf("with the rule: %q, want %q", got, c.right)
			}
			pool, kafka = fresh(t, "t")
			mutate(t, pool, c.function, c.old, c.new)
			if got := c.scenario(t, pool, kafka); !strings.Contains(got, c.wrong) {
				t.Errorf("without the rule: %q, want %q: the scenario doesn't catch it", got, c.wrong)
			}
		})
	}
}

// mutate replaces a piece of a function.
func mutate(t testing.TB, pool *pgxpool.Pool, function, old, new string) {
	t.Helper()
	def := query[string](t, pool, "select pg_get_functiondef(('fenceline.' || $1)::regproc)", function)
	old, new = strings.ReplaceAll(old, "@schema@", `"fenceline"`), strings.ReplaceAll(new, "@schema@", `"fenceline"`)
	if strings.Count(def, old) != 1 {
		t.Fatalf("%s has %q %d times", function, old, strings.Count(def, old))
	}
	if _, err := pool.Exec(bg, strings.Replace(def, old, new, 1)); err != nil {
		t.Fatal(err)
	}
}
