package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func TestSweepSaysWhatGoesAndWhyTheRestStays(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, env, "relay", "sweep"), 0, "removed   0 receipts, 0 tombstones, 0 turns")
	cmdtest.Commit(t, dsn, "quakes", "ci", "quake.reported", "{}")
	cmdtest.Exec(t, dsn, `select fenceline.close(key, epoch, max_issued_token) from fenceline.fence where key = 'ci'`)
	want(t, cmdtest.Run(t, env, "relay", "sweep", "-dry-run"), 0, "would go  0 receipts", "kept      2 receipts: the retry window is open, the first until 20", `such as key "ci"`, "1 tombstone: the retry window")
	cmdtest.Exec(t, dsn, `update fenceline.turn set at = at - interval '2 days'`)
	r := sweepJSON(t, env, "sweep", "-dry-run", "-json")
	if !r.DryRun || r.Receipts != 2 || r.Tombstones != 0 || len(r.Kept) != 1 || r.Kept[0].Reason != "unpublished" || !strings.Contains(r.Kept[0].Meaning, "relay status") {
		t.Errorf("the plan is %+v", r)
	}
	r = sweepJSON(t, env, "sweep", "-json")
	if r.DryRun || r.Receipts != 2 || r.Tombstones != 0 || len(r.Kept) != 1 || r.Kept[0].Reason != "unpublished" {
		t.Errorf("swept %+v", r)
	}
	want(t, cmdtest.Run(t, env, "relay", "sweep", "-foreign-relay"), 0, "removed   0 receipts, 1 tombstone")
}

func sweepJSON(t *testing.T, env cmdtest.Env, args ...string) (r sweepReport) {
	t.Helper()
	got := cmdtest.Run(t, env, "relay", args...)
	want(t, got, 0)
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil {
		t.Fatalf("%v:\n%s", err, got.Stdout)
	}
	return r
}

func TestSweepNeedsTheOperatorsRoleAndSensibleTimes(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "producer")}, "relay", "sweep"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, settings, "relay", "sweep", "-retry-window", "0", "-batch", "0", "-residence", "1"), 2, "3 problems", "-retry-window", "-batch", "-residence")
	want(t, cmdtest.Run(t, nil, "relay", "sweep", "-help"), 0, "_operator", "Defaults to 24h", "-dry-run")
}
