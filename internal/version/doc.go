// Package version says which build a command is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// injected is set by the linker: -ldflags "-X …/internal/version.injected=v1.2.3".
var injected string

// String gives version, revision and Go version. A build without an injected
// version has the module's, as after go install; else it says devel.
func String() string {
	v, revision := injected, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		modified := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if revision != "" && modified {
			revision += ", modified"
		}
	}
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	if revision != "" {
		v += " (" + revision + ")"
	}
	return fmt.Sprintf("%s, %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Short gives the version alone, for a label.
func Short() string {
	v, _, _ := strings.Cut(String(), ",")
	v, _, _ = strings.Cut(v, " (")
	return v
}
