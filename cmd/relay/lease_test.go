package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func relayJSON[T any](t *testing.T, env cmdtest.Env, args ...string) (r T) {
	t.Helper()
	got := cmdtest.Run(t, env, "relay", args...)
	want(t, got, 0)
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil {
		t.Fatalf("%v:\n%s", err, got.Stdout)
	}
	return r
}

func TestLeasesAreListedShownEndedAndAssigned(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	reader := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	want(t, cmdtest.Run(t, reader, "relay", "lease", "list"), 0, "no leases")
	cmdtest.Exec(t, dsn, "select fenceline.acquire('catalogue/ci', 'worker-a', '1 hour', gen_random_uuid(), '1 s')",
		"select fenceline.acquire('catalogue/nc', 'worker-b', '1 hour', gen_random_uuid(), '1 s')",
		"select fenceline.relay_acquire('fenceline:relay', 'relay-1', '1 hour', gen_random_uuid(), '1 s')",
		"select fenceline.hand_over(key, epoch, token, 'worker-c', '1 hour') from fenceline.lease where key = 'catalogue/nc'")
	want(t, cmdtest.Run(t, reader, "relay", "lease", "list"), 0, `"catalogue/ci"`, `held by "worker-a" for another 3`, `reserved for "worker-c"`)
	if r := relayJSON[leaseReport](t, reader, "lease", "list", "-json", "-system"); len(r.Leases) != 1 || r.Leases[0].Key != "fenceline:relay" || r.More {
		t.Errorf("%+v", r)
	}
	want(t, cmdtest.Run(t, reader, "relay", "lease", "list", "-prefix", "cat", "-limit", "1"), 0, `there are more: go on with -after catalogue/ci`)
	if r := relayJSON[leaseReport](t, reader, "lease", "list", "-json", "-after", "catalogue/ci"); len(r.Leases) != 1 || r.Leases[0].State != "reserved" || r.Leases[0].Successor != "worker-c" || r.Leases[0].Expires != nil {
		t.Errorf("%+v", r)
	}

	want(t, cmdtest.Run(t, env, "relay", "lease", "expire", "-who", "alice", "catalogue/ci"), 0, `ended the lease of "catalogue/ci", which was "worker-a"'s`)
	want(t, cmdtest.Run(t, env, "relay", "lease", "expire", "-who", "alice", "catalogue/ci"), 0, `nothing to end: nobody holds "catalogue/ci"`)
	want(t, cmdtest.Run(t, env, "relay", "lease", "own", "-who", "alice", "-login", "postgres", "catalogue/ci"), 0, `belongs to login "postgres"`)
	want(t, cmdtest.Run(t, env, "relay", "lease", "own", "-login", "no such", "catalogue/ci"), 1, "there is no login no such")
	want(t, cmdtest.Run(t, reader, "relay", "lease", "show", "catalogue/ci"), 0, "fence  \"catalogue/ci\"", `belongs to login "postgres"`, "free, was", `expire, holder "worker-a", by "alice"`, "acquire, holder")
	r := relayJSON[keyReport](t, reader, "lease", "show", "-json", "-turns", "2", "catalogue/ci")
	if r.Token != 1 || r.Lease == nil || r.Lease.State != "free" || len(r.Turns) != 2 || r.Turns[0].Why != "owner" || r.Turns[1].Whom != "alice" || r.Turns[1].Login == "" || r.Closed != nil {
		t.Errorf("%+v", r)
	}
	want(t, cmdtest.Run(t, reader, "relay", "lease", "show", "nothing"), 1, `key "nothing" has no fence`)
	want(t, cmdtest.Run(t, env, "relay", "lease", "expire", "nothing"), 1, `key "nothing" has no fence`)

	cmdtest.Exec(t, dsn, "select fenceline.open('new')", "begin; select fenceline.advance('elsewhere', 7); commit",
		"select fenceline.close(key, epoch, token) from fenceline.acquire('again', 'worker-a', '1 hour', gen_random_uuid(), '1 s') a, (values ('again')) k(key)", "select fenceline.open('again')")
	want(t, cmdtest.Run(t, reader, "relay", "lease", "show", "new"), 0, "lease  none: nobody has acquired the key yet")
	want(t, cmdtest.Run(t, env, "relay", "lease", "expire", "new"), 0, `nothing to end: "new" has no lease of ours`)
	want(t, cmdtest.Run(t, reader, "relay", "lease", "show", "elsewhere"), 0, "none of ours: its holder advances the fence itself")
	want(t, cmdtest.Run(t, reader, "relay", "lease", "show", "again"), 0, "nobody has acquired the key since it was opened; before:", `was "worker-a"'s`)
	if r := relayJSON[keyReport](t, reader, "lease", "show", "-json", "new"); r.Token != 0 || r.Epoch == 0 || r.Lease != nil {
		t.Errorf("%+v", r)
	}
}

func TestTheLeaseCommandsRefuseWithTheRemedy(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Exec(t, dsn, "select fenceline.acquire('k', 'a', '1 hour', gen_random_uuid(), '1 s')")
	monitor := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}
	producer := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "producer")}
	want(t, cmdtest.Run(t, monitor, "relay", "lease", "expire", "k"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, monitor, "relay", "lease", "own", "k"), 1, "fenceline_operator")
	want(t, cmdtest.Run(t, producer, "relay", "lease", "list"), 1, "fenceline_monitor")
	want(t, cmdtest.Run(t, producer, "relay", "history", "show"), 1, "fenceline_monitor")
	cmdtest.Exec(t, dsn, "update fenceline.history set timeline = '00000009'") // or there is nothing to confirm
	for _, command := range []string{"history bump", "history confirm", "history policy -on-new bump"} {
		want(t, cmdtest.Run(t, monitor, "relay", strings.Fields(command)...), 1, "fenceline_operator")
	}
	for command, text := range map[string]string{
		"lease":                          "a command is missing",
		"lease steal":                    `unknown command "steal": there are list, show, expire and own`,
		"lease show":                     "want one key behind the flags",
		"lease expire":                   "want one key behind the flags",
		"lease show a b":                 "want one key behind the flags",
		"lease list k":                   "unexpected argument",
		"lease list -limit 0":            "-limit",
		"history":                        "a command is missing",
		"history mend":                   `unknown command "mend"`,
		"history bump -above x":          "-above",
		"history bump -above -1":         "-above",
		"history policy":                 "-on-new is missing",
		"history policy -on-new perhaps": "want one of refuse, bump",
	} {
		want(t, cmdtest.Run(t, monitor, "relay", strings.Fields(command)...), 2, text)
	}
	want(t, cmdtest.Run(t, nil, "relay", "lease", "-help"), 0, "relay lease list|show|expire|own")
	want(t, cmdtest.Run(t, nil, "relay", "history", "-help"), 0, "relay history show|bump|confirm|policy")
}

func TestAHistoryIsShownAndAnOperatorDecides(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "operator")}
	want(t, cmdtest.Run(t, env, "relay", "history", "show"), 0, "recorded  system", "on new    refuse", "this is the database in which the fences were issued")
	cmdtest.Exec(t, dsn, "update fenceline.history set timeline = '00000009'")
	want(t, cmdtest.Run(t, env, "relay", "history", "show"), 0, "timeline 00000009", "nothing commits", "relay history confirm", "relay history bump")
	want(t, cmdtest.Run(t, env, "relay", "history", "confirm", "-who", "alice"), 0, "confirmed: epochs go on")
	shown := cmdtest.Run(t, env, "relay", "history", "show", "-json").Stdout
	want(t, cmdtest.Run(t, env, "relay", "history", "confirm", "-who", "alice"), 0, "nothing to confirm, and nothing was changed")
	if now := cmdtest.Run(t, env, "relay", "history", "show", "-json").Stdout; now != shown {
		t.Errorf("something was changed:\n%s\n%s", shown, now)
	}
	cmdtest.Exec(t, dsn, "update fenceline.history set timeline = '00000009'")
	r := relayJSON[bumped](t, env, "history", "bump", "-who", "bob", "-above", "9000000000000000", "-json")
	if r.Since <= 9_000_000_000_000_000 {
		t.Errorf("%+v", r)
	}
	want(t, cmdtest.Run(t, env, "relay", "history", "policy", "-on-new", "bump", "-who", "carol"), 0, "in a new history: bump")
	cmdtest.Exec(t, dsn, "update fenceline.history set timeline = '00000009'")
	want(t, cmdtest.Run(t, env, "relay", "history", "show"), 0, "begins a new history with the next lease", `bump by "bob"`, `policy bump by "carol"`)
	h := relayJSON[historyReport](t, env, "history", "show", "-json")
	if h.Same || h.OnNew != "bump" || h.Since != r.Since || len(h.Changes) != 3 || h.Changes[2].Who != "alice" || h.Recorded.Timeline != "00000009" {
		t.Errorf("%+v", h)
	}
}
