package doctest

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestCodeOfAPageIsFoundWhereverItStands(t *testing.T) {
	const text = "Run `relay run` or:\n\n    make test   # all\n    make lint\n\n  list item\n    is no block\n\n```go\nx := 1\n```\n\n```\nrelay status\n```\n"
	var got []string
	for _, c := range CodeIn(text) {
		got = append(got, c.Lang+":"+strings.TrimSpace(c.Text))
	}
	want := []string{":relay run", ":make test   # all\nmake lint", "go:x := 1", ":relay status"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCommandLinesAreToldFromProseAndDrawings(t *testing.T) {
	for line, want := range map[string]string{
		"relay run -postgres DSN -grace=5s":                       "relay [run] [-postgres -grace]",
		"go run ./cmd/demo -keep":                                 "demo [] [-keep]",
		"go run -race ./cmd/relay status":                         "relay [status] []",
		"docker compose exec demo-consumer /demo-consumer report": "demo-consumer [report] []",
		"docker compose run --rm demo-producer":                   "",
		"FENCELINE_SCHEMA=x relay migrate up":                     "relay [migrate up] []",
		"./bin/relay status -json":                                "relay [status] [-json]",
		"relay <command> -help":                                   "relay [] []",
		"relay  ◄── snapshot window":                              "relay [] []",
		"relay migrate up|down":                                   "relay [migrate up|down] []",
		"make test PKG=./relay/... ARGS='-run Window -v'":         "make [test] [PKG ARGS]",
		"demo: PASS committed=1":                                  "",
		"consumer.Run":                                            "",
	} {
		c, ok := command(line)
		got := ""
		if ok {
			got = c.Program + " [" + strings.Join(c.Words, " ") + "] [" + strings.Join(c.Flags, " ") + "]"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
	if got := len(Commands("`make test && make lint`")); got != 2 {
		t.Errorf("%d commands, want 2", got)
	}
}

func TestEachFaultOfAPromiseIsSeen(t *testing.T) {
	root := fstest.MapFS{
		"a/code.go":      {Data: []byte("package a\n\nfunc F() {}\n\nfunc (r *R) M() {}\n\ntype T struct{}\n\nconst c = 1\n\nconst (\n\tinner = 2\n)\n")},
		"a/code_test.go": {Data: []byte("package a\n\nfunc TestKept(t *testing.T) {}\n")},
		"m/001.up.sql":   {Data: []byte("create function @schema@.enter(p text) returns void\ncreate function @schema@.append() returns void\n")},
		"m/002.up.sql":   {Data: []byte("create or replace function @schema@.append() returns void\n")},
	}
	const good = "| kept | `a/code.go:F` | `TestKept` in `./a` |"
	for row, want := range map[string]string{
		good: "",
		"| kept | `a/code.go`, `m/001.up.sql:enter`, `a/code.go:R.M` | `TestKept/sub` in `./a` |":    "",
		"| kept | `a/code.go:T` `a/code.go:c` `a/code.go:inner` | `TestKept`, `TestKept` in `./a` |": "",
		"| kept | in code | `TestKept` in `./a` |":                                                   "names no code",
		"| kept | `a/gone.go` | `TestKept` in `./a` |":                                               "no file a/gone.go",
		"| kept | `a/code.go:G` | `TestKept` in `./a` |":                                             "declares no G",
		"| kept | `m/001.up.sql:leave` | `TestKept` in `./a` |":                                      "declares no leave",
		"| kept | `m/001.up.sql:append` | `TestKept` in `./a` |":                                     "m/002.up.sql has replaced the append of m/001.up.sql",
		"| kept | `m/002.up.sql:append` | `TestKept` in `./a` |":                                     "",
		"| kept | `a/code.go:F` | later |":                                                           "names no test",
		"| kept | `a/code.go:F` | `TestKept` |":                                                      "package of TestKept isn't named",
		"| kept | `a/code.go:F` | `TestGone` in `./a` |":                                             "./a has no TestGone",
		"| kept | `a/code.go:F` | `TestKep` in `./a` |":                                              "./a has no TestKep",
		"| kept | `a/code.go:F` | `TestKept` in `./b` |":                                             "./b has no TestKept",
		"| kept | `a/code.go:F` | `kept` in `./a` |":                                                 "neither a test nor a package",
		"| kept | `a/code.go:F` |":                                                                   "2 columns",
		"just words":                                                                                 "there is no row",
	} {
		got := strings.Join(CheckGuarantees(root, "| promise | code | tests |\n| --- | --- | --- |\n"+row+"\n"), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
}

func TestASnippetThatWouldNotCompileForAReaderIsSeen(t *testing.T) {
	for snippet, want := range map[string]string{
		"fences, err := fencing.New(ctx, pool, fencing.Config{})\n// …": "",
		"func f(ctx context.Context) error { return ctx.Err() }":        "",
		"package p\n\nfunc f() {}":                                      "",
		"fences, err := fencing.New(ctx, pool)":                         "not enough arguments",
		"fencing.Gone()":                                                "undefined: fencing.Gone",
		"x := 1 +":                                                      "expected operand",
		"for { y := 1 }":                                                "declared and not used",
	} {
		source, err := Wrap(snippet)
		got := ""
		if err != nil {
			got = err.Error()
		} else if out, err := compile(t, source); err != nil {
			got = out
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", snippet, got, want)
		}
	}
}

func TestEachFaultOfATableOfDefaultsIsSeen(t *testing.T) {
	type inner struct{ Most int64 }
	type config struct {
		Name    string
		Wait    time.Duration
		Policy  string
		Limits  inner
		Streams map[string]int
	}
	want := Defaults(reflect.ValueOf(config{"x", time.Minute, "strict", inner{5}, nil}), nil, "Name")
	page := func(rows ...string) string {
		return "x\n\nOf `config`:\n\n| field | default |\n| --- | --- |\n" + strings.Join(rows, "\n") + "\n\nbehind\n"
	}
	good := []string{"| `Wait` | 1m |", "| `Policy` | strict |", "| `Limits.Most` | 5 |", "| `Streams` | none |"}
	if got := CheckDefaults(page(good...), "config", want); len(got) > 0 {
		t.Errorf("a table that is right: %q", got)
	}
	for name, rows := range map[string][]string{
		"a row is missing":  good[1:],
		"a value is wrong":  append([]string{"| `Wait` | 2m |"}, good[1:]...),
		"a row is too many": append([]string{"| `Speed` | 1 |"}, good...),
	} {
		if got := CheckDefaults(page(rows...), "config", want); len(got) != 1 {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := CheckDefaults("no table", "config", want); len(got) != 1 {
		t.Errorf("without a table: %q", got)
	}
	for d, want := range map[time.Duration]string{0: "0s", time.Second: "1s", 15 * time.Minute: "15m", 24 * time.Hour: "24h", 90 * time.Minute: "1h30m", 50 * time.Millisecond: "50ms"} {
		if got := short(d); got != want {
			t.Errorf("%v is short %q, want %q", d, got, want)
		}
	}
}
