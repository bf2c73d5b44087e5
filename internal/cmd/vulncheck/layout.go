package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The files of a database, as its protocol documents them:
// index/db.json, index/modules.json, index/vulns.json and ID/<id>.json.
type (
	dbMeta struct {
		Modified time.Time `json:"modified"`
	}
	moduleMeta struct {
		Path  string       `json:"path"`
		Vulns []moduleVuln `json:"vulns"`
	}
	// moduleVuln leaves out the optional field "fixed". It only spares a reader
	// reports that can't concern its version; without it each report of a module
	// is read and decides by its own version ranges.
	moduleVuln struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
	}
	vulnMeta struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
		Aliases  []string  `json:"aliases,omitempty"`
	}
)

// layOut writes the reports found in src as a database under dir and returns how
// many there are. All of them get the time of the set, since the reports don't
// carry one.
func layOut(src fs.FS, dir string, modified time.Time) (int, error) {
	names, err := fs.Glob(src, "*.json")
	if err != nil {
		return 0, err
	}
	for _, sub := range []string{"index", "ID"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return 0, err
		}
	}
	modules := map[string][]moduleVuln{}
	vulns := make([]vulnMeta, 0, len(names))
	for _, name := range names {
		raw, err := fs.ReadFile(src, name)
		if err != nil {
			return 0, err
		}
		var report struct {
			ID       string
			Aliases  []string
			Affected []struct{ Package struct{ Name string } }
		}
		if err := json.Unmarshal(raw, &report); err != nil {
			return 0, fmt.Errorf("report %s: %w", name, err)
		}
		if report.ID != strings.TrimSuffix(name, ".json") {
			return 0, fmt.Errorf("report %s calls itself %q", name, report.ID)
		}
		if len(report.Affected) == 0 {
			return 0, fmt.Errorf("report %s names no module", name)
		}
		vulns = append(vulns, vulnMeta{ID: report.ID, Modified: modified, Aliases: report.Aliases})
		for _, affected := range report.Affected {
			entry := moduleVuln{ID: report.ID, Modified: modified}
			// A report lists a module once for each of its version ranges.
			if list := modules[affected.Package.Name]; !slices.Contains(list, entry) {
				modules[affected.Package.Name] = append(list, entry)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "ID", name), raw, 0o644); err != nil {
			return 0, err
		}
	}

	index := make([]moduleMeta, 0, len(modules))
	for path, list := range modules {
		index = append(index, moduleMeta{Path: path, Vulns: list})
	}
	slices.SortFunc(index, func(a, b moduleMeta) int { return strings.Compare(a.Path, b.Path) })
	for name, content := range map[string]any{
		"db.json":      dbMeta{Modified: modified},
		"modules.json": index,
		"vulns.json":   vulns,
	} {
		raw, err := json.Marshal(content)
		if err != nil {
			return 0, err
		}
		if err := os.WriteFile(filepath.Join(dir, "index", name), raw, 0o644); err != nil {
			return 0, err
		}
	}
	return len(vulns), nil
}
