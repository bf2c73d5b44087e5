package relay

import (
	"errors"
	"testing"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func TestASequenceThatGivesOutPositionsAheadIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	if _, err := pool.Exec(bg, "alter sequence fenceline.outbox_pos cache 20"); err != nil {
		t.Fatal(err)
	}
	err := runFor(t, pool, kafka, quick())
	var setting *SettingError
	if !errors.As(err, &setting) {
		t.Fatalf("Run gives %v", err)
	}
	t.Log(err)
}

// Why it is refused: two connections that commit one after the other to the
// same stream get positions in the opposite order.
func TestWithACachingSequenceALaterEventOfAStreamIsReadFirst(t *testing.T) {
	t.Parallel()
	for cache, inverted := range map[string]bool{"1": false, "20": true} {
		pool := pgmigrated.Pool(t)
		if _, err := pool.Exec(bg, "alter sequence fenceline.outbox_pos cache "+cache); err != nil {
			t.Fatal(err)
		}
		p := newProducer(t, pool, "k")
		one, other := p.begin(), p.begin()
		other.enter().append("a", "takes 1 to 20")
		other.exec("commit")
		one.enter().append("a", "takes 21")
		one.exec("commit")
		other.exec("begin")
		other.step += "b"
		other.enter().append("a", "takes 2")
		other.exec("commit")
		pages, _ := drain(t, testReader(t, pool, 10, 1<<20), start(), 0)
		var seqs []int64
		for _, row := range pages[0].rows {
			seqs = append(seqs, row.Seq)
		}
		if got := seqs[1] > seqs[2]; got != inverted {
			t.Errorf("with cache %s the stream is read as %v", cache, seqs)
		}
	}
}

func TestASetUpThatBreaksThePromisesIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"alter table fenceline.outbox_0 set unlogged",
		"alter sequence fenceline.outbox_pos set unlogged",
		"alter table fenceline.outbox drop column xid; alter table fenceline.outbox add xid xid8 not null default pg_current_xact_id()",
	} {
		pool, kafka := fresh(t)
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Logf("%s: %v", sql, err) // not on this version of PostgreSQL
			continue
		}
		var setting *SettingError
		if err := runFor(t, pool, kafka, quick()); !errors.As(err, &setting) {
			t.Errorf("%s: Run gives %v", sql, err)
		} else {
			t.Log(err)
		}
	}
	pool, kafka := fresh(t)
	cfg := quick()
	cfg.AllowUnsafeDatabase = false
	if query[string](t, pool, "show fsync") == "off" {
		err := runFor(t, pool, kafka, cfg)
		if err == nil {
			t.Error("a server with fsync off is accepted")
		}
		t.Log(err)
	}
}
