package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/quakes"
)

const report1 = `{"id":"ci1","net":"ci","updated":1700000000000,"time":1,"mag":1.5}`

func inputFile(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "input.ndjson")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestBadInputIsRefusedBeforeAnythingIsStarted(t *testing.T) {
	all, err := quakes.All()
	if err != nil {
		t.Fatal(err)
	}
	var three strings.Builder // networks, with reports enough
	kept := map[string]bool{}
	for _, r := range all {
		if kept[r.Net] || len(kept) < 3 {
			kept[r.Net] = true
			three.Write(r.Line)
			three.WriteByte('\n')
		}
	}
	const dsn = "postgres://u:planted-secret@127.0.0.1:1/d"
	for name, c := range map[string]struct {
		args  []string
		code  int
		texts []string
	}{
		"line that is no report":     {[]string{"-input", inputFile(t, report1+"\nwhat is this\n")}, 1, []string{"line 2 is not a report", "want one JSON object with id, net, updated and mag", "take the line out"}},
		"line without a magnitude":   {[]string{"-input", inputFile(t, `{"id":"x","net":"ci","updated":1}`)}, 1, []string{"line 1 is not a report", "it has no mag"}},
		"same report twice":          {[]string{"-input", inputFile(t, report1+"\n"+report1+"\n")}, 1, []string{"line 2", `"ci1" was on line 1 already`}},
		"empty file":                 {[]string{"-input", inputFile(t, "\n\n")}, 1, []string{"there is no report in it", "one JSON object a line"}},
		"too small":                  {[]string{"-input", inputFile(t, report1)}, 1, []string{"demo: FAIL", "at least four networks", "larger input"}},
		"too few networks":           {[]string{"-input", inputFile(t, three.String())}, 1, []string{"demo: FAIL", "at least four networks", "larger input"}},
		"no such file":               {[]string{"-input", filepath.Join(t.TempDir(), "missing")}, 2, []string{"-input", "no such file"}},
		"unknown flag":               {[]string{"-fast"}, 2, []string{`unknown flag "-fast"`, `"demo -help"`}},
		"unknown command":            {[]string{"tell"}, 2, []string{`unknown command "tell"`}},
		"no connection string":       {[]string{"-postgres", "planted-secret", "-kafka", "x"}, 2, []string{"2 problems", "-postgres: is not a connection string", `-kafka: "x"`}},
		"unreachable PostgreSQL":     {[]string{"-postgres", dsn}, 1, []string{"demo: FAIL can't use PostgreSQL at 127.0.0.1:1", "check host and port"}},
		"produce, nothing set":       {[]string{"produce"}, 2, []string{"-postgres is missing"}},
		"produce, lease of zero":     {[]string{"produce", "-postgres", dsn, "-lease-ttl", "0"}, 2, []string{`-lease-ttl: "0"`, "a duration from"}},
		"produce, schema injects":    {[]string{"produce", "-postgres", dsn, "-schema", `x";drop`}, 2, []string{"is not allowed"}},
		"produce, bad input":         {[]string{"produce", "-postgres", dsn, "-input", inputFile(t, "nothing")}, 1, []string{"line 1 is not a report"}},
		"produce, no server":         {[]string{"produce", "-postgres", dsn}, 1, []string{"can't use PostgreSQL at 127.0.0.1:1"}},
		"help":                       {[]string{"-h"}, 0, []string{"-keep", "-input", "FENCELINE_POSTGRES_DSN_FILE", `"demo help" lists`}},
		"help of all":                {[]string{"help"}, 0, []string{"story", "produce", "version"}},
		"version":                    {[]string{"-version"}, 0, []string{"demo "}},
		"help although things wrong": {[]string{"-fast", "-h"}, 0, []string{"-keep"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cmdtest.Run(t, nil, "demo", c.args...)
			if r.Code != c.code {
				t.Errorf("exit code %d, want %d", r.Code, c.code)
			}
			for _, text := range c.texts {
				if !strings.Contains(r.All(), text) {
					t.Errorf("no %q in\n%s", text, r.All())
				}
			}
			if strings.Contains(r.All(), "planted-secret") {
				t.Errorf("a secret was printed:\n%s", r.All())
			}
			if strings.Contains(r.All(), "for this run alone") {
				t.Errorf("a server was started:\n%s", r.All())
			}
		})
	}
}

func TestProduceIntoADatabaseWithoutTheSchemaNamesTheCommandThatMakesIt(t *testing.T) {
	dsn := cmdtest.Database(t)
	r := cmdtest.Run(t, nil, "demo", "produce", "-postgres", dsn)
	if r.Code != 1 || !strings.Contains(r.Stderr, "schema missing: have migration 0, want ") || !strings.Contains(r.Stderr, "relay migrate up") {
		t.Errorf("exit code %d:\n%s", r.Code, r.All())
	}
}
