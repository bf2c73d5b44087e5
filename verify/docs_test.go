package verify_test

import (
	"os"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/verify"
)

func TestTheDocumentationNamesEachKindOfFinding(t *testing.T) {
	page, err := os.ReadFile("../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Count(string(page), "\n| `")
	if n := len(verify.Kinds()); rows != n {
		t.Errorf("the page has %d kinds, the package %d", rows, n)
	}
	for _, k := range verify.Kinds() {
		if !strings.Contains(string(page), "\n| `"+string(k)+"` |") {
			t.Errorf("the page has no row for %q", k)
		}
	}
}
