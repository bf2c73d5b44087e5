package doctest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

func TestMain(m *testing.M) { os.Exit(testmain.Main(m)) }

const root = "../.."

func page(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// pages are all Markdown files of the project.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() && name == "bench/results": // what "make bench" has left
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			names = append(names, name)
		}
		return nil
	})
	if err != nil || !slices.Contains(names, "README.md") {
		t.Fatalf("pages are %v, %v", names, err)
	}
	return names
}

// compile compiles Go sources as a package of this module that is in no folder.
func compile(t *testing.T, sources ...string) (string, error) {
	t.Helper()
	abs, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	write := func(name string, content []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for i, source := range sources {
		name := fmt.Sprintf("snippet%d.go", i)
		replace[filepath.Join(abs, "snippet", name)] = write(name, []byte(source))
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := write("overlay.json", content)
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./snippet").CombinedOutput()
	return string(out), err
}

func TestEachGoBlockOfThePagesCompiles(t *testing.T) {
	blocks := map[string]int{}
	for _, name := range pages(t) {
		var sources []string // of a page together: one block may use what another declares
		for _, code := range CodeIn(page(t, name)) {
			if code.Lang != "go" {
				continue
			}
			source, err := Wrap(code.Text)
			if err != nil {
				t.Errorf("%s, line %d: %v", name, code.Line, err)
				continue
			}
			sources = append(sources, source)
		}
		if blocks[name] = len(sources); len(sources) == 0 {
			continue
		}
		if out, err := compile(t, sources...); err != nil {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, strings.Join(sources, "\n"))
		}
	}
	if blocks["README.md"] == 0 || blocks["docs/reads.md"] == 0 {
		t.Errorf("the pages show no Go: %v", blocks)
	}
}

func TestEachPromiseNamesCodeAndTestsThatExist(t *testing.T) {
	for _, complaint := range CheckGuarantees(os.DirFS(root), page(t, "docs/guarantees.md")) {
		t.Errorf("docs/guarantees.md, %s", complaint)
	}
}

// help is what a program says of a command; ok: it has such a command.
func help(t *testing.T, program string, words []string) (text string, ok bool) {
	t.Helper()
	helpMu.Lock()
	defer helpMu.Unlock()
	key := program + " " + strings.Join(words, " ")
	r, known := helps[key]
	if !known {
		r = cmdtest.Run(t, nil, program, append(slices.Clone(words), "-help")...)
		helps[key] = r
	}
	return r.Stdout, r.Code == 0
}

var (
	helpMu sync.Mutex
	helps  = map[string]cmdtest.Result{}
)

func mentions(text, name string) bool {
	return regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(name) + `($|[^\w-])`).MatchString(text)
}

// complainAbout returns what is wrong with a command line.
func complainAbout(t *testing.T, c Command, makefile string) []string {
	t.Helper()
	var complaints []string
	if c.Program == "make" {
		for _, words := range c.Spellings() {
			for _, target := range words {
				if !regexp.MustCompile(`(?m)^` + target + `:`).MatchString(makefile) {
					complaints = append(complaints, "the Makefile has no target "+target)
				}
			}
		}
		for _, name := range c.Flags {
			if !regexp.MustCompile(`(?m)^` + name + `\s*[?:]?=`).MatchString(makefile) {
				complaints = append(complaints, "the Makefile has no variable "+name)
			}
		}
		return complaints
	}
	for _, words := range c.Spellings() {
		text, ok := help(t, c.Program, words)
		if !ok {
			complaints = append(complaints, "there is no command "+strings.Join(append([]string{c.Program}, words...), " "))
			continue
		}
		for _, flag := range c.Flags {
			if flag != "-help" && flag != "-h" && flag != "-version" && !mentions(text, flag) {
				complaints = append(complaints, "it has no flag "+flag)
			}
		}
	}
	return complaints
}

func TestEachCommandThatThePagesShowExists(t *testing.T) {
	makefile, shown := page(t, "Makefile"), 0
	for _, name := range pages(t) {
		for _, c := range Commands(page(t, name)) {
			shown++
			for _, complaint := range complainAbout(t, c, makefile) {
				t.Errorf("%s, line %d: %q: %s", name, c.Line, c.Shown, complaint)
			}
		}
	}
	if shown == 0 {
		t.Error("no page shows a command")
	}
}

func TestACommandThatDoesNotExistIsSeen(t *testing.T) {
	makefile := page(t, "Makefile")
	for shown, want := range map[string]string{
		"relay migrate sideways":      "there is no command relay migrate sideways",
		"relay migrate up|sideways":   "there is no command relay migrate sideways",
		"relay run -quick":            "it has no flag -quick",
		"demo-consumer replay":        "there is no command demo-consumer replay",
		"go run ./cmd/demo -fast":     "it has no flag -fast",
		"make tea":                    "the Makefile has no target tea",
		"make test SPEED=9":           "the Makefile has no variable SPEED",
		"relay run -lease-ttl 5s":     "",
		"relay migrate up|down -part": "",
		"relay status -json":          "",
		"make test PKG=./relay/...":   "",
	} {
		c, ok := command(shown)
		if !ok {
			t.Errorf("%q isn't seen as a command", shown)
			continue
		}
		got := strings.Join(complainAbout(t, c, makefile), "\n")
		if got != want {
			t.Errorf("%q: %q, want %q", shown, got, want)
		}
	}
}

// TestTheReadmeTableOfSettingsIsThatOfTheProgram holds each row of a table
// "flag of `program command`" against that command's help.
func TestTheReadmeTableOfSettingsIsThatOfTheProgram(t *testing.T) {
	var of []string
	rows, listed := 0, map[string]bool{}
	for line := range strings.Lines(page(t, "README.md")) {
		cells := cellsOf(line)
		if cells == nil {
			of = nil
			continue
		}
		if strings.HasPrefix(cells[0], "flag of ") {
			of = strings.Fields(spansOf(cells[0])[0])
			continue
		}
		if of == nil || strings.Trim(cells[0], "-: ") == "" {
			continue
		}
		text, ok := help(t, of[0], of[1:])
		if !ok {
			t.Fatalf("there is no command %q", of)
		}
		flags, variables := spansOf(cells[0]), spansOf(cells[1])
		for i, flag := range flags {
			rows++
			listed[flag] = true
			entry := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(flag) + `  (FENCELINE_\w+).*\n +(.*)$`).FindStringSubmatch(text)
			switch {
			case entry == nil:
				t.Errorf("%v has no flag %s", of, flag)
			case i >= len(variables) || entry[1] != variables[i]:
				t.Errorf("the variable of %s is %s, README.md says %v", flag, entry[1], variables)
			case cells[2] == "required" != strings.HasSuffix(entry[2], "Required."):
				t.Errorf("README.md says of %s %q, the program %q", flag, cells[2], entry[2])
			default:
				def := regexp.MustCompile(`Defaults to (\S+)\.$`).FindStringSubmatch(entry[2])
				if said := strings.Split(cells[2], ", "); def != nil && (i >= len(said) || said[i] != def[1]) {
					t.Errorf("the default of %s is %s, README.md says %q", flag, def[1], cells[2])
				}
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^  (-[\w-]+)`).FindAllStringSubmatch(text, -1) {
			if _, seen := listed[m[1]]; !seen {
				listed[m[1]] = false
			}
		}
	}
	for flag, ok := range listed {
		if !ok {
			t.Errorf("README.md leaves %s out", flag)
		}
	}
	if rows == 0 {
		t.Error("README.md has no table of settings")
	}
}

// TestEachVariableThatThePagesNameExists looks for it in code and set-up, not in
// pages.
func TestEachVariableThatThePagesNameExists(t *testing.T) {
	var source strings.Builder
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "internal/doctest/repository_test.go" {
			return err
		}
		switch path.Ext(name) {
		case ".go", ".yaml":
			source.WriteString(page(t, name))
		}
		if name == "Makefile" {
			source.WriteString(page(t, name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"relay run", "relay migrate up", "demo-consumer run", "demo produce"} {
		words := strings.Fields(command)
		text, _ := help(t, words[0], words[1:])
		source.WriteString(text)
	}
	for _, name := range pages(t) {
		for _, variable := range regexp.MustCompile(`FENCELINE_[A-Z_]*[A-Z]`).FindAllString(page(t, name), -1) {
			if !mentions(source.String(), variable) {
				t.Errorf("%s: nothing reads %s", name, variable)
			}
		}
	}
}

func TestEachLinkWithinTheProjectLeadsToAFile(t *testing.T) {
	for _, name := range pages(t) {
		for _, target := range LinksIn(page(t, name)) {
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), target)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, target)
			}
		}
	}
}
