package fencing_test

import "testing"

func TestEachRuleOfTheLeasesIsNeededByAScenario(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]struct {
		function, piece, with string
		scenario              func(*world)
	}{
		"a release that keeps nothing for who waits": {"_release", "next := case when l.waiter_until > n then l.waiter end;", "next := null;", firstInLine},
		"whoever asks is first in line":              {"_acquire", "and (x.waiter is null or x.waiter = p_holder or x.waiter_until <= n)", "", firstInLine},
		"a key that is kept for nobody":              {"_acquire", "l.reserved_until > n and l.successor <> p_holder", "false", handedOver},
		"a hand-over of what has expired":            {"_hand_over", "or l.expires_at <= n", "", notOnesToGive},
		"a rotation of the lease alone":              {"rotate", "select a.epoch, a.token into epoch, token from @schema@._advance_locked(f, null, l.holder, 'rotate') a;", "epoch := p_epoch; token := p_token + 1;", rotationMoves},
		"a rotation of the fence alone":              {"rotate", "update @schema@.lease t set epoch = rotate.epoch, token = rotate.token, rotation = p_rotation where t.key = p_key;", "", rotationMoves},
		"a rotation of what has expired":             {"rotate", "or l.expires_at <= clock_timestamp()", "", overIsNotRotated},
		"a rotation that is another each time":       {"rotate", "if l.rotation = p_rotation and", "if false and", rotationAgain},
		"a rotation in another history":              {"rotate", "perform @schema@._same_history();", "", rotatesInAnotherHistory},
		"F without the owner":                        {"enter", "and (owner is null or owner = session_user)", "", ownedCommit},
		"a replay for whoever asks":                  {"_refuse", "if x.owner <> session_user then", "if false then", ownedCommit},
		"a token that anybody moves":                 {"_fence_owned", "if old.owner <> session_user and", "if false and", ownedAcquire},
		"an owner by its own word":                   {"_acquire", "if f.max_issued_token > 0 then", "if false then", servedOthers},
		"a new history for each who finds it":        {"_bump", "if found then return null; end if;", "", oneBegins},
		"a new history that nobody begins":           {"_same_history", "perform @schema@._bump(0, null, true);", "perform @schema@._other_history();", followsByItself},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mutate(m.function, m.piece, m.with)
			if !fails(w, m.scenario) {
				t.Error("the scenario passes without the rule")
			}
		})
	}
}
