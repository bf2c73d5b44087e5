package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

const (
	pass = `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
`
	ok = `{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
	skip = `{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: only at full length\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`
	fail = `{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:1: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`
)

func TestOnlyWhatAPersonWantsIsPrintedAndSkipsMustBeAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		in, allow string
		good      bool
		want, not string
	}{
		"passed":           {pass + ok, "^$", true, "ok  \tp\t0.1s\ntests: 1 passed, 0 failed, 0 skipped\n", "chatter"},
		"allowed skip":     {pass + skip + ok, "full length", true, "skipped: p TestB: b_test.go:1: only at full length", "MUST NOT"},
		"other skip":       {pass + skip + ok, "another reason", false, "SKIPPED AND MUST NOT BE: p TestB", ""},
		"failed":           {pass + fail, "^$", false, "it broke", "chatter"},
		"nothing ran":      {ok, "^$", false, "0 passed", ""},
		"cut off":          {pass + `{"Action":"output","Package":"p","Test":"TestD","Output":"last words\n"}` + "\n", "^$", true, "last words", ""},
		"didn't build":     {pass + `{"ImportPath":"q","Action":"build-output","Output":"q.go:1: no\n"}` + "\n" + `{"ImportPath":"q","Action":"build-fail"}` + "\n", "^$", false, "q.go:1: no", ""},
		"somebody else's":  {"teststack: ready\n" + pass + ok, "^$", true, "teststack: ready\n", ""},
		"no closing break": {pass + "teststack: gone", "^$", true, "teststack: gone", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			good, _ := summarise(strings.NewReader(c.in), &out, regexp.MustCompile(c.allow))
			if good != c.good {
				t.Errorf("good = %v, want %v", good, c.good)
			}
			if got := out.String(); !strings.Contains(got, c.want) || c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("printed %q, want %q in it and not %q", got, c.want, c.not)
			}
		})
	}
}
