package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Layer says what the packages below a folder may know of this module.
type Layer struct {
	Dir string
	// Knows are the folders it may import, beside its own; chains included.
	Knows []string
	// Never are folders that it may not import in its tests either.
	Never []string
}

// Confined is a dependency that may be imported in few places only.
type Confined struct {
	Modules []string
	Dirs    []string // where it may be imported
	Tests   bool     // test files may import it anywhere
	Because string
}

// Layers are the packages that users import, and what each may rest on.
var Layers = []Layer{
	{Dir: "fencing", Knows: []string{"internal"}},
	{Dir: "outbox", Knows: []string{"internal"}},
	{Dir: "migrations", Knows: []string{"internal"}},
	{Dir: "relay", Knows: []string{"fencing", "outbox", "internal"}, Never: []string{"consumer"}},
	{Dir: "consumer", Knows: []string{"fencing", "outbox", "internal"}, Never: []string{"relay"}},
}

// Confinements are the dependencies that not everybody may have.
var Confinements = []Confined{
	{
		Modules: []string{"github.com/segmentio/kafka-go"},
		Dirs:    []string{"relay/kafkapub", "consumer/kafkasource", "internal/devstack", "internal/kafkatest", "internal/kafkasec", "cmd"},
		Because: "another Kafka client must be able to take its place",
	},
	{
		Modules: []string{"github.com/twmb/franz-go"},
		Dirs:    []string{"internal/devstack", "internal/kafkatest", "cmd/demo"},
		Tests:   true,
		Because: "it serves tests and the demo",
	},
	{
		Modules: []string{"github.com/fergusstrange/embedded-postgres"},
		Dirs:    []string{"internal/devstack"},
		Because: "it serves tests and the demo, and brings dependencies that users needn't have",
	},
	{
		Modules: []string{
			"github.com/prometheus", "go.opentelemetry.io", "go.opencensus.io", "github.com/DataDog",
			"github.com/armon/go-metrics", "github.com/hashicorp/go-metrics", "expvar",
		},
		Dirs:    []string{"cmd", "internal"},
		Because: "a library leaves the choice of metrics and tracing to its users",
	},
}

// CheckImports returns each import that breaks a layer or a confinement.
func CheckImports(t *Tree, layers []Layer, confined []Confined) []string {
	var complaints []string
	for _, pkg := range t.Sorted() {
		for _, file := range pkg.Files {
			for _, imported := range file.Imports {
				for _, rule := range confined {
					if underAny(imported, rule.Modules) && !underAny(pkg.Path, rule.Dirs) && (!rule.Tests || !file.Test) {
						complaints = append(complaints, fmt.Sprintf("%s imports %s, which is for %s only: %s",
							file.Name, imported, strings.Join(rule.Dirs, ", "), rule.Because))
					}
				}
			}
		}
		for _, layer := range layers {
			if under(pkg.Path, layer.Dir) {
				complaints = append(complaints, layer.check(t, pkg)...)
			}
		}
	}
	return complaints
}

// check follows the chains of imports that start in pkg.
func (l Layer) check(t *Tree, pkg *Package) []string {
	var complaints []string
	for _, file := range pkg.Files {
		for _, imported := range file.Imports {
			if dir, ok := ours(imported); ok && file.Test && underAny(dir, l.Never) {
				complaints = append(complaints, fmt.Sprintf("%s imports %s: %s and %s never know each other", file.Name, dir, l.Dir, dir))
			}
		}
	}
	chains := t.chains(pkg)
	for _, dir := range sortedKeys(chains) {
		if !under(dir, l.Dir) && !underAny(dir, l.Knows) {
			complaints = append(complaints, fmt.Sprintf("%s may know only %s, but reaches %s (%s)",
				l.Dir, strings.Join(l.Knows, ", "), dir, strings.Join(chains[dir], " -> ")))
		}
	}
	return complaints
}

// chains maps each package of ours that pkg needs when it is built (its tests
// aside) to a shortest chain of imports that leads there.
func (t *Tree) chains(pkg *Package) map[string][]string {
	reached := map[string][]string{}
	queue := [][]string{{pkg.Path}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		from := t.Packages[chain[len(chain)-1]]
		if from == nil {
			continue
		}
		for _, file := range from.Files {
			if file.Test {
				continue
			}
			for _, imported := range file.Imports {
				dir, ok := ours(imported)
				if !ok || dir == pkg.Path || reached[dir] != nil {
					continue
				}
				reached[dir] = append(slices.Clone(chain), dir)
				queue = append(queue, reached[dir])
			}
		}
	}
	return reached
}

// ours turns an import path of this module into a folder.
func ours(imported string) (string, bool) {
	return strings.CutPrefix(imported, Module+"/")
}

func sortedKeys(m map[string][]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
