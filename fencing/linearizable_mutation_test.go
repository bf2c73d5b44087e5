package fencing_test

import (
	"testing"
	"time"
)

// Each of the rules on which the answers to many clients at once depend, taken
// away: then no order explains what they are told. Each rule has a scenario of its
// own besides, which is quick; this says that the search would find what nobody
// has thought of. It takes as long as it takes to meet the moment.
func TestEachRuleIsNeededByAnOrderOfWhatManyClientsAreTold(t *testing.T) {
	t.Parallel()
	if !longRun() {
		t.Skip("a search for each rule takes too long for every day: FENCELINE_LONG=1, or make mutants")
	}
	type piece struct{ function, piece, with string }
	for name, pieces := range map[string][]piece{
		"F without the epoch":              {{"enter", "key = p_key and epoch = p_epoch and max_issued_token", "key = p_key and max_issued_token"}},
		"F without the token":              {{"enter", "epoch = p_epoch and max_issued_token = p_token and closed_at", "epoch = p_epoch and closed_at"}},
		"F without a lock":                 {{"enter", "session_user) for no key update", "session_user) for key share"}},
		"F of a closed life":               {{"enter", "max_issued_token = p_token and closed_at is null", "max_issued_token = p_token"}},
		"a miss at F is stale, without R2": {{"enter", "if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;\n  end if;\n  -- H:", "if not found then raise exception 'stale' using errcode = 'FL003', detail = '{}'; end if;\n  end if;\n  -- H:"}},
		"receipts that go without a floor": {{"sweep_floors", "update @schema@.fence f set floor_epoch = m.epoch, floor_token = m.token from mine m where f.key = m.key returning f.key", "select m.key from mine m"},
			{"sweep_receipts", "(c.epoch, c.token) <= (t.floor_epoch, t.floor_token)", "(c.epoch, c.token) <= (t.epoch, t.token)"}},
		"a takeover that leaves the fence": {{"_advance_locked", "update @schema@.fence t set max_issued_token = _advance_locked.token where t.key = f.key;", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, p := range pieces {
				w.mutate(p.function, p.piece, p.with)
			}
			v := &verdict{TB: t}
			inner := *w
			inner.TB = v
			done := make(chan struct{})
			go func() {
				defer close(done)
				inOneOrder(&inner, 5*time.Minute)
			}()
			<-done
			if !v.failed {
				t.Error("there was an order without the rule")
			}
		})
	}
}
