package fencing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

// mutate replaces a piece of one of the functions in the test's database. The
// piece must be there, or the mutation would prove nothing; where it stands
// several times, as F does in the gate, each is replaced.
func (w *world) mutate(function, piece, with string) {
	w.Helper()
	piece, with = schema.Expand(piece, schema.Default), schema.Expand(with, schema.Default)
	source := value[string](w, "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'fenceline'::regnamespace and proname = $1", function)
	if !strings.Contains(source, piece) {
		w.Fatalf("%s does not contain %q", function, piece)
	}
	w.exec(strings.ReplaceAll(source, piece, with))
}

// Each rule that carries the promise, taken away, and the scenario that must
// then fail. The scenarios are the tests of the same names.
func TestEachRuleIsNeededByAScenario(t *testing.T) {
	t.Parallel()
	const (
		f          = "key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update"
		r2         = "if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;\n  end if;\n  -- H:"
		advance    = "update @schema@.fence t set max_issued_token = _advance_locked.token where t.key = f.key;"
		own        = "and r.xid = pg_current_xact_id_if_assigned()"
		identity   = "h.identity = current_setting('fenceline.identity', true)"
		setDurable = "perform set_config('synchronous_commit', 'on', true)"
		born       = "and r.committed_at >= transaction_timestamp()"
	)
	stale := "raise exception 'stale' using errcode = 'FL003', detail = '{}'"
	for name, m := range map[string]struct {
		function, piece, with string
		scenario              func(*world)
	}{
		"F without the epoch": {"enter", f, "key = p_key and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update", tokenOfAnotherLife},
		"F by a fact of another row, which the old snapshot answers": {"enter", f,
			"key = p_key and epoch = p_epoch and p_token = (select o.max_issued_token from @schema@.fence o where o.key = p_key) and closed_at is null and (owner is null or owner = session_user) for no key update", waitedBehindATakeover},
		"F without a lock": {"enter", f, strings.TrimSuffix(f, " for no key update"), blockedTakeover},
		"a miss at F is stale, without R2": {"enter", r2,
			"if not found then " + stale + "; end if;\n  end if;\n  -- H:", retryBehindItsOwnCommitAndATakeover},
		"a takeover that leaves the fence to a later transaction": {"_advance_locked", advance, "", refusedBeforeTheNewHolderHasWritten},
		"no look at the timeline in a commit":                     {"enter", "starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)", "true", func(w *world) { anotherHistory(w, "k", "timeline = '00000009'") }},
		"no look at the database's oid in a commit": {"enter", identity, "split_part(h.identity, '/', 1) = split_part(current_setting('fenceline.identity', true), '/', 1)",
			func(w *world) { anotherHistory(w, "k", "database_oid = 1") }},
		"no look at the table's oid in a commit": {"enter", "h.self_oid = h.tableoid", "true", func(w *world) { anotherHistory(w, "k", "self_oid = 1") }},
		"no look at the system in a commit": {"enter", identity, "split_part(h.identity, '/', 2) = split_part(current_setting('fenceline.identity', true), '/', 2)",
			func(w *world) { anotherHistory(w, "k", "system_identifier = 1") }},
		"no look at the history's beginning in a commit":      {"enter", "p_epoch >= h.since and", "", afterABump},
		"any plan for the head, at the gate":                  {"enter", " SET enable_seqscan TO 'off'", "", readsNoDeadHeadOfASmallTable},
		"any plan for the head, for one event":                {"append_one", " SET enable_seqscan TO 'off'", "", readsNoDeadHeadOfASmallTable},
		"any plan for the head, for several":                  {"append", " SET enable_seqscan TO 'off'\n SET jit TO 'off'\n SET plan_cache_mode TO 'force_generic_plan'", "", readsNoDeadHeadOfASmallTable},
		"no timeout behind the gate":                          {"enter", "set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true)", "ms", pausedBehindTheGate},
		"a pass from any transaction":                         {"append", own + " " + born, "", passOfAnother},
		"a pass by transaction id alone":                      {"append", born, "", xidComesRoundAgain},
		"a pass from any transaction, for one event":          {"append_one", own + " " + born, "", passOfAnother},
		"a pass by transaction id alone, for one event":       {"append_one", born, "", xidComesRoundAgain},
		"a pass from any transaction, for several streams":    {"append_group", "and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp()", "", passOfAnother},
		"a pass by transaction id alone, for several streams": {"append_group", "and r.committed_at >= transaction_timestamp()", "", xidComesRoundAgain},
		"a group that waits for a fence":                      {"enter_group", " skip locked", "", nobodyWaitsForAnothersFence},
		"a group without its fences' locks":                   {"enter_group", "\n         for no key update skip locked", "", aTakeoverWaitsForAGroup},
		"a group whose tokens are not compared":               {"enter_group", "and f.max_issued_token = u.token", "", groupWithALostLease},
		"a group whose epochs are not compared":               {"enter_group", "f.epoch = u.epoch and", "", groupOfAnotherLife},
		"a group in any history":                              {"enter_group", "starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)", "true", groupInAnotherHistory},
		"a group of before a bump":                            {"enter_group", "u.epoch >= h.since and", "", groupOfBeforeABump},
		"several steps whose token is not compared":           {"enter_many", "and max_issued_token = p_token", "", refusedOn("taken over", "batches of a key")},
		"several steps of any life":                           {"enter_many", "and epoch = p_epoch", "", refusedOn("of an earlier life", "callbacks of a key")},
		"several steps of a closed key":                       {"enter_many", "and closed_at is null", "", refusedOn("closed", "batches of a key")},
		"several steps under another login's key":             {"enter_many", "and (owner is null or owner = session_user)", "", refusedOn("another login's", "callbacks of a key")},
		"several steps without the fence's lock":              {"enter_many", " for no key update", "", locksOn("batches of a key")},
		"several steps on any timeline":                       {"enter_many", "starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)", "true", refusedOn("in another history", "batches of a key")},
		"several steps on any server":                         {"enter_many", "and h.identity = current_setting('fenceline.identity', true)", "", refusedOn("on another server", "batches of a key")},
		"several steps in an old dump":                        {"enter_many", "and h.self_oid = h.tableoid", "", refusedOn("an old dump's", "batches of a key")},
		"several steps of before a bump":                      {"enter_many", "p_epoch >= h.since and", "", refusedOn("of before a bump", "batches of a key")},
		"no timeout behind the gate of several":               {"enter_many", "set_config('idle_in_transaction_session_timeout', t.ms, true), set_config('statement_timeout', t.ms, true)", "t.ms", settingsOn("off", "callbacks of a key")},
		"several steps as durable as it pleases":              {"enter_many", setDurable, "perform 1", settingsOn("off", "callbacks of a key")},
		"a group as durable as the session pleases":           {"enter_group", setDurable, "perform 1", settingsOn("local", "group of batches")},
		"a commit as durable as the login pleases":            {"enter", setDurable, "perform 1", settingsOn("local", "callback")},
		"a short way for what is not durable":                 {"enter", " and current_setting('synchronous_commit') not in ('off', 'local')", "", settingsOn("off", "batch with an event")},
		"a commit of a closed key":                            {"enter", "and closed_at is null", "", refusedOn("closed", "batch with an event")},
		"a commit under another login's key":                  {"enter", "and (owner is null or owner = session_user)", "", refusedOn("another login's", "batch with an event")},
		"a group with another login's key":                    {"enter_group", "and (f.owner is null or f.owner = session_user)", "", refusedOn("another login's", "group of callbacks")},
		"a group with a closed key":                           {"enter_group", "and f.closed_at is null", "", refusedOn("closed", "group of batches")},
		"a token as durable as the session pleases":           {"_advance_locked", setDurable, "perform 1", durableToken},
		"a close as durable as the session pleases":           {"close", setDurable, "perform 1", durableLives},
		"an open as durable as the session pleases":           {"open", setDurable, "perform 1", durableLives},
		"a new history as durable as the session pleases":     {"_bump", setDurable, "perform 1", durableLives},
		"a granted token is an outsider's too":                {"advance", "and not exists (select 1 from @schema@.lease l where l.key = p_key and l.epoch = f.epoch and l.token = f.max_issued_token)", "", managedTokenIsNobodyElses},
		"a bump by the clock alone":                           {"_bump", ", (select max(f.epoch) + 1 from @schema@.fence f)", "", aboveWhatIsRecorded},
		"leases of before outlive a bump":                     {"_bump", "update @schema@.lease set expires_at = '-infinity', successor = null, reserved_until = null where expires_at > '-infinity' or reserved_until is not null;", "", afterABump},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.function == "enter_group" && strings.Contains(m.piece, "skip locked") && !longRun() {
				t.Skip("it fails by waiting for a minute: FENCELINE_LONG=1")
			}
			w := newWorld(t)
			if !strings.Contains(m.with, "for no key update") && m.piece == f {
				w.mutate(m.function, " skip locked", "") // which is of the lock
			}
			w.mutate(m.function, m.piece, m.with)
			if !fails(w, m.scenario) {
				t.Error("the scenario passes without the rule")
			}
		})
	}
}

// fails runs a scenario that must not pass.
func fails(w *world, scenario func(*world)) bool {
	v := &verdict{TB: w.TB}
	inner := *w
	inner.TB = v
	done := make(chan struct{})
	go func() {
		defer close(done)
		scenario(&inner)
	}()
	select {
	case <-done:
		return v.failed
	case <-time.After(3 * time.Minute): // longer than anything in a scenario waits
		w.Fatal("the scenario hangs instead of failing")
		return false
	}
}

// Receipt and fence of R2 come from one snapshot. Read one after the other,
// fence first, a sweep in between takes the receipt, and the floor that would
// tell of it is read already: a commit that has happened is called stale. (An
// F that had to wait keeps the row locked, so a sweep cannot come; one that
// misses at once does not.)
func TestReceiptAndFenceReadOneAfterTheOtherWouldCallACommitStale(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pause func(*world)
		want  error
	}{
		"one statement, sweep before": {func(w *world) {
			w.mutate("_refuse", "\nbegin\n", "\nbegin\nperform pg_advisory_xact_lock(10);\n")
		}, fencing.ErrUnconfirmable},
		"two statements, sweep between": {func(w *world) {
			w.mutate("_refuse", "evidence := jsonb_build_object(", `perform pg_advisory_xact_lock(10);
				select r.key, r.algo, r.digest, r.result, r.committed_at, r.xid into x.rkey, x.algo, x.digest, x.result, x.committed_at, x.xid
				from (select 1) one left join @schema@.receipt r on r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
				evidence := jsonb_build_object(`)
		}, fencing.ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, retry := w.worker("a"), w.worker("retry")
			pos := a.acquire("k").Position()
			// A pause between R1 and F, and one in R2.
			w.mutate("enter", "-- F: every fact", "if p_step = 's' and current_setting('application_name') = 'slow' then perform pg_advisory_xact_lock(9); end if;\n-- F: every fact")
			c.pause(w)
			_, err := retry.pool.Exec(ctx, "set application_name = 'slow'")
			w.ok(err)
			pauses := w.session(w.dsn)
			_, err = pauses.Exec(ctx, "select pg_advisory_lock(9), pg_advisory_lock(10)")
			w.ok(err)
			pid := retry.pid()
			second := retry.commitLater(pos, content("s", "x"))
			pgtest.WaitBlocked(t, w.admin, pid, pauses.PgConn().PID())
			_, err = a.commit(pos, content("s", "x"))
			w.ok(err)
			a.takeOver("k")
			_, err = pauses.Exec(ctx, "select pg_advisory_unlock(9)")
			w.ok(err)
			pgtest.WaitTrue(t, w.admin, "select exists (select from pg_locks where locktype = 'advisory' and objid = 10 and pid = $1 and not granted)", int32(pid))
			_, err = pauses.Exec(ctx, "begin; update fenceline.fence set floor_epoch = epoch, floor_token = 1; delete from fenceline.receipt; commit; select pg_advisory_unlock(10)")
			w.ok(err)
			w.is((<-second).err, c.want)
		})
	}
}
