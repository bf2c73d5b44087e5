package archtest

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func repository(t *testing.T) fs.FS {
	t.Helper()
	root := os.DirFS("../..")
	if content, err := fs.ReadFile(root, "go.mod"); err != nil || !strings.HasPrefix(string(content), "module "+Module+"\n") {
		t.Fatalf("the root of the module isn't two folders up: %v", err)
	}
	return root
}

func repositoryTree(t *testing.T) *Tree {
	t.Helper()
	tree, err := Load(repository(t))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, complaint := range complaints {
		t.Error(complaint)
	}
}

func TestEveryPackageImportsOnlyWhatItsLayerMayKnow(t *testing.T) {
	report(t, CheckImports(repositoryTree(t), Layers, Confinements))
}

func TestEveryPackageHasADocFileAndEveryPublicNameAComment(t *testing.T) {
	report(t, CheckDocs(repositoryTree(t)))
}

func TestNoFileLeavesWorkUnsaidOrPointsOutOfTheTree(t *testing.T) {
	complaints, err := CheckWords(repository(t), Words)
	if err != nil {
		t.Fatal(err)
	}
	report(t, complaints)
}

// A rule about a folder that was renamed would hold for ever.
func TestEveryFolderNamedInARuleExists(t *testing.T) {
	tree := repositoryTree(t)
	exists := func(dir string) bool {
		for name := range tree.Packages {
			if under(name, dir) {
				return true
			}
		}
		return false
	}
	var dirs []string
	for _, layer := range Layers {
		dirs = append(dirs, layer.Dir)
		dirs = append(dirs, layer.Knows...)
		dirs = append(dirs, layer.Never...)
	}
	for _, rule := range Confinements {
		dirs = append(dirs, rule.Dirs...)
	}
	for _, dir := range dirs {
		if !exists(dir) {
			t.Errorf("a rule names %s, where no package is", dir)
		}
	}
}

func goFile(pkg string, imports ...string) *fstest.MapFile {
	src := "package " + pkg + "\n"
	for _, imported := range imports {
		src += "import _ \"" + imported + "\"\n"
	}
	return &fstest.MapFile{Data: []byte(src)}
}

func TestABrokenImportRuleIsSeen(t *testing.T) {
	const kafka, franz, embedded = "github.com/segmentio/kafka-go", "github.com/twmb/franz-go/pkg/kgo", "github.com/fergusstrange/embedded-postgres"
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  string // empty: allowed
	}{
		"a leaf imports the other leaf":       {fstest.MapFS{"outbox/a.go": goFile("outbox", Module+"/fencing")}, "reaches fencing"},
		"a leaf imports an internal package":  {fstest.MapFS{"outbox/a.go": goFile("outbox", Module+"/internal/x")}, ""},
		"a leaf's test imports another layer": {fstest.MapFS{"outbox/a_test.go": goFile("outbox_test", Module+"/migrations")}, ""},
		"a leaf reaches up through internal": {fstest.MapFS{
			"fencing/a.go":    goFile("fencing", Module+"/internal/x"),
			"internal/x/x.go": goFile("x", Module+"/relay"),
		}, "fencing -> internal/x -> relay"},
		"internal's tests are no part of a chain": {fstest.MapFS{
			"fencing/a.go":         goFile("fencing", Module+"/internal/x"),
			"internal/x/x_test.go": goFile("x", Module+"/relay"),
		}, ""},
		"relay imports both leaves":                     {fstest.MapFS{"relay/a.go": goFile("relay", Module+"/fencing", Module+"/outbox")}, ""},
		"relay imports migrations":                      {fstest.MapFS{"relay/a.go": goFile("relay", Module+"/migrations")}, "reaches migrations"},
		"relay imports consumer":                        {fstest.MapFS{"relay/a.go": goFile("relay", Module+"/consumer")}, "reaches consumer"},
		"a relay adapter imports consumer":              {fstest.MapFS{"relay/kafkapub/a.go": goFile("kafkapub", Module+"/consumer/kafkasource")}, "reaches consumer/kafkasource"},
		"consumer's test imports relay":                 {fstest.MapFS{"consumer/a_test.go": goFile("consumer", Module+"/relay")}, "never know each other"},
		"a folder that begins like a layer is another":  {fstest.MapFS{"relayed/a.go": goFile("relayed", Module+"/consumer")}, ""},
		"the relay core imports kafka-go":               {fstest.MapFS{"relay/a.go": goFile("relay", kafka)}, "kafka-go"},
		"a test of the relay core imports kafka-go":     {fstest.MapFS{"relay/a_test.go": goFile("relay", kafka)}, "kafka-go"},
		"the publisher imports kafka-go":                {fstest.MapFS{"relay/kafkapub/a.go": goFile("kafkapub", kafka)}, ""},
		"the publisher imports franz-go":                {fstest.MapFS{"relay/kafkapub/a.go": goFile("kafkapub", franz)}, "franz-go"},
		"the publisher's test imports franz-go":         {fstest.MapFS{"relay/kafkapub/a_test.go": goFile("kafkapub", franz)}, ""},
		"a test imports embedded-postgres":              {fstest.MapFS{"relay/a_test.go": goFile("relay", embedded)}, "embedded-postgres"},
		"a library imports a metrics client":            {fstest.MapFS{"fencing/a.go": goFile("fencing", "github.com/prometheus/client_golang/prometheus")}, "metrics"},
		"a command imports a metrics client":            {fstest.MapFS{"cmd/relay/a.go": goFile("main", "github.com/prometheus/client_golang/prometheus")}, ""},
		"a module of its own is another's affair":       {fstest.MapFS{"tools/x/go.mod": {}, "tools/x/a.go": goFile("x", embedded)}, ""},
		"a file for another platform is looked at, too": {fstest.MapFS{"outbox/a_plan9.go": goFile("outbox", Module+"/relay")}, "reaches relay"},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := Load(c.files)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(CheckImports(tree, Layers, Confinements), "\n")
			if c.want == "" && got != "" {
				t.Errorf("complains: %s", got)
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("complaints are %q, want one with %q", got, c.want)
			}
		})
	}
}

func TestAMissingCommentIsSeen(t *testing.T) {
	const head = "package relay\n"
	for name, c := range map[string]struct{ src, want string }{
		"function":                       {"func F() {}", "F has"},
		"documented function":            {"// F does.\nfunc F() {}", ""},
		"unexported function":            {"func f() {}", ""},
		"method of an exported type":     {"// T is.\ntype T struct{}\nfunc (*T) M() {}", "M has"},
		"method of a generic type":       {"// T is.\ntype T[A, B any] struct{}\nfunc (*T[A, B]) M() {}", "M has"},
		"method of an unexported type":   {"type t struct{}\nfunc (t) String() string { return \"\" }", ""},
		"type":                           {"type T int", "T has"},
		"field of an undescribed type":   {"type T struct { F int }", "F has"},
		"field of a described type":      {"// T is.\ntype T struct { F int }", ""},
		"setting":                        {"// TConfig is.\ntype TConfig struct { F int }", "F has"},
		"setting with a line comment":    {"// TConfig is.\ntype TConfig struct {\n\tF int // seconds\n}", ""},
		"method of an interface":         {"// T is.\ntype T interface { M() }", "M has"},
		"constant":                       {"const C = 1", "C has"},
		"constants of a described group": {"// Kinds.\nconst (\n\tA = 1\n\tB = 2\n)", ""},
		"variable":                       {"var V = 1", "V has"},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := Load(fstest.MapFS{
				"relay/doc.go": {Data: []byte("// Package relay is.\npackage relay\n")},
				"relay/a.go":   {Data: []byte(head + c.src + "\n")},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(CheckDocs(tree), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("complaints are %q, want %q", got, c.want)
			}
		})
	}
	for name, files := range map[string]fstest.MapFS{
		"no doc.go":              {"internal/x/x.go": goFile("x")},
		"doc.go without comment": {"internal/x/doc.go": goFile("x")},
		"comment elsewhere":      {"internal/x/x.go": {Data: []byte("// Package x is.\npackage x\n")}},
	} {
		tree, err := Load(files)
		if err != nil {
			t.Fatal(err)
		}
		if got := CheckDocs(tree); len(got) == 0 {
			t.Errorf("%s: no complaint", name)
		}
	}
}

func TestAForbiddenWordIsSeen(t *testing.T) {
	for line, bad := range map[string]bool{
		"// TO" + "DO: later":                    true,
		"a FIX" + "ME here":                      true,
		"TO" + "DOS is another word":             false,
		"see /wor" + "k/notes.md":                true,
		"the relay's work/sleep loop":            false,
		"https://example.com/wor" + "k/x":        false,
		"WORKDIR /src":                           false,
		"[a](../a.md)":                           false, // docs/x/../a.md
		"[a](../../a.md)":                        false, // the root
		"[a](../" + "../" + "../elsewhere/a.md)": true,
		"see https://pro" + "xy.golang.org/x":    true,
		"go test ./...":                          false,
	} {
		complaints, err := CheckWords(fstest.MapFS{"docs/x/y.md": {Data: []byte("first\n" + line + "\n")}}, Words)
		if err != nil {
			t.Fatal(err)
		}
		if (len(complaints) > 0) != bad {
			t.Errorf("%q: complaints are %q", line, complaints)
		}
	}
}

func TestAFurtherWorktreeOfTheRepositoryIsNoComplaint(t *testing.T) {
	complaints, err := CheckWords(fstest.MapFS{".git": {Data: []byte("gitdir: " + "/work" + "/main/.git/worktrees/x\n")}}, Words)
	if err != nil || len(complaints) != 0 {
		t.Errorf("%v, %v", complaints, err)
	}
}
