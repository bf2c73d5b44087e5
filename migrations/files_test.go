package migrations

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
)

func TestEachBrokenSetOfFilesIsRefusedByNameAndReason(t *testing.T) {
	t.Parallel()
	for folder, want := range map[string][2]string{
		"gap":         {"producer/003_lease", "002 is missing"},
		"duplicate":   {"producer/002_other.up.sql", "duplicate number 002"},
		"nodown":      {"producer/002_note.down.sql", "no down file"},
		"noup":        {"producer/003_lease.up.sql", "no up file"},
		"unsorted":    {"producer/2_note.down.sql", "not of the form"},
		"badheader":   {"producer/003_lease.up.sql", "min-library is 4, want 1 to 3"},
		"noheader":    {"producer/003_lease.up.sql", "no line `-- min-library: N`"},
		"transaction": {"producer/002_note.up.sql", `"commit;" ends or begins a transaction`},
		"placeholder": {"producer/001_init.up.sql", "unknown placeholder @producers@"},
	} {
		t.Run(folder, func(t *testing.T) {
			_, err := load(os.DirFS("testdata/"+folder), Producer)
			var file *FileError
			if !errors.As(err, &file) || file.File != want[0] || !strings.Contains(file.Reason, want[1]) {
				t.Fatalf("got %v, want a FileError of %s with %q", err, want[0], want[1])
			}
		})
	}
}

func TestGoodFilesAreLoadedInOrderWithTheOldestLibraryThatEachAllows(t *testing.T) {
	t.Parallel()
	all, err := load(os.DirFS("testdata/good"), Producer)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, m := range all {
		got = append(got, m.String())
		if want := []int{1, 1, 2}[i]; m.MinLibrary != want {
			t.Errorf("%s: min library %d, want %d", m, m.MinLibrary, want)
		}
	}
	if s := strings.Join(got, " "); s != "producer/001_init producer/002_note producer/003_lease" {
		t.Fatalf("got %s", s)
	}
}

func TestPLpgSQLBlocksAreNotMistakenForTransactions(t *testing.T) {
	t.Parallel()
	if err := vet("create function f() returns int language plpgsql as $$\nbegin\n  return 1;\nend;\n$$;"); err != nil {
		t.Fatal(err)
	}
}

func TestALibrarysLevelIsTheNewestOfItsOwnFiles(t *testing.T) {
	t.Parallel()
	for _, part := range []Part{Producer, Consumer} {
		all, err := load(embedded, part)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != schema.Level(part) {
			t.Errorf("%s: %d files, but schema.Level is %d: raise it together with the file", part, len(all), schema.Level(part))
		}
	}
}
