package kafkasource

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/doctest"
)

func TestTheTableOfDefaultsIsTheCodes(t *testing.T) {
	page, err := os.ReadFile("../../docs/consuming.md")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Brokers: []string{"a:1"}, Group: "g", Topics: []string{"t"}}
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	want := doctest.Defaults(reflect.ValueOf(cfg), map[string]string{"Logger": "slog.Default()"}, "Brokers", "Group", "Topics")
	for _, problem := range doctest.CheckDefaults(string(page), "kafkasource.Config", want) {
		t.Error(problem)
	}
}

// The table of traps in doc.go is only worth what its tests are.
func TestEachTrapInTheTableNamesTestsThatExist(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, dir := range []string{".", ".."} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f.Name(), "_test.go") {
				text, err := os.ReadFile(dir + "/" + f.Name())
				if err != nil {
					t.Fatal(err)
				}
				code.Write(text)
			}
		}
	}
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(doc), -1)
	if len(names) < 10 {
		t.Fatalf("the table names %d tests", len(names))
	}
	for _, name := range names {
		if !strings.Contains(code.String(), "func "+name+"(") {
			t.Errorf("doc.go names %s, which doesn't exist", name)
		}
	}
}
