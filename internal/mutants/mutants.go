package mutants

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Edit replaces a text that is in a file once. The file is relative to the
// directory of the package that is tested.
type Edit struct{ File, Old, New string }

// Mutant is a package with a rule taken out.
type Mutant struct {
	// Name says which rule, or what is done instead.
	Name string
	// Edits take it out.
	Edits []Edit
	// Test is the test of the package that must fail.
	Test string
}

// EnvOnly names the variable that chooses the mutants with a text in their name.
const EnvOnly = "FENCELINE_MUTANT"

// Check reports mutants that have become the package itself, and those whose test
// is gone.
func Check(t *testing.T, all []Mutant) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, f := range files {
		tests.WriteString(read(t, f))
	}
	for _, m := range all {
		for _, e := range m.Edits {
			if n := strings.Count(read(t, e.File), e.Old); n != 1 {
				t.Errorf("%s: what it replaces is %d times in %s, want once", m.Name, n, e.File)
			}
		}
		if !strings.Contains(tests.String(), "func "+m.Test+"(") {
			t.Errorf("%s: there is no %s", m.Name, m.Test)
		}
	}
}

// Run builds the package once for each mutant and wants its test to fail by itself.
func Run(t *testing.T, all []Mutant) {
	t.Helper()
	for _, m := range all {
		if only := os.Getenv(EnvOnly); only != "" && !strings.Contains(m.Name, only) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) { m.run(t) })
	}
}

func (m Mutant) run(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout=300s", "-overlay", m.overlay(t), "-run", "^"+regexp.QuoteMeta(m.Test)+"$", "-v", ".")
	b, err := cmd.CombinedOutput()
	out := string(b)
	switch {
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		t.Fatalf("it does not build:\n%s", out)
	case err == nil:
		t.Fatalf("%s passes although the rule is gone", m.Test)
	case !strings.Contains(out, "--- FAIL: "+m.Test):
		t.Fatalf("the test did not fail by itself: %v\n%s", err, out)
	}
	t.Log(firstLines(out))
}

// overlay writes the changed files, and the list of them that the go command wants.
func (m Mutant) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	changed := map[string]string{} // text by file
	for _, e := range m.Edits {
		text, ok := changed[e.File]
		if !ok {
			text = read(t, e.File)
		}
		if strings.Count(text, e.Old) != 1 {
			t.Fatalf("%s has not what it replaces", e.File)
		}
		changed[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	replace := map[string]string{}
	for file, text := range changed {
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		replace[path] = filepath.Join(dir, filepath.Base(file))
		write(t, replace[path], []byte(text))
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	write(t, path, list)
	return path
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// firstLines are the first complaints of a test.
func firstLines(out string) string {
	var keep []string
	for line := range strings.SplitSeq(out, "\n") {
		if strings.Contains(line, "_test.go:") {
			keep = append(keep, strings.TrimSpace(line))
		}
		if len(keep) == 2 {
			break
		}
	}
	return strings.Join(keep, "; ")
}
