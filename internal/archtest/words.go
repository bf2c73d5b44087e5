package archtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Words are patterns that no file of the tree may contain. They are put together
// from pieces so that this file doesn't contain them itself.
var Words = map[string]*regexp.Regexp{
	"work left unsaid":             regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`),
	"a path of somebody's machine": regexp.MustCompile(`(^|[^\w.~/-])/wor` + `k/`),
	"a host that serves packages":  regexp.MustCompile(`\b(pro` + `xy\.golang\.org|rep` + `o1\.maven\.org|rep` + `o\.maven\.apache\.org|docker\.i` + `o|gcr\.i` + `o|ghcr\.i` + `o|deb\.debian\.o` + `rg)\b`),
}

// upwards finds references that climb out of the folder of their file.
var upwards = regexp.MustCompile(`(?:\.\./)+[\w./@-]*`)

// CheckWords returns each line that contains one of the words, and each relative
// reference that leads out of the tree.
func CheckWords(fsys fs.FS, words map[string]*regexp.Regexp) ([]string, error) {
	var complaints []string
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			// Unlike the code of this module, hidden folders and the modules of the
			// tools are looked at as well.
			if name == ".git" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		// In a further worktree of a repository .git is a file that points to it.
		if !entry.Type().IsRegular() || path.Base(name) == "go.sum" || name == ".git" {
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(content, 0) >= 0 { // not text
			return nil
		}
		for i, line := range strings.Split(string(content), "\n") {
			for why, pattern := range words {
				if found := pattern.FindString(line); found != "" {
					complaints = append(complaints, fmt.Sprintf("%s:%d: %q: %s", name, i+1, found, why))
				}
			}
			for _, reference := range upwards.FindAllString(line, -1) {
				if target := path.Join(path.Dir(name), reference); target == ".." || strings.HasPrefix(target, "../") {
					complaints = append(complaints, fmt.Sprintf("%s:%d: %q leads out of the tree", name, i+1, reference))
				}
			}
		}
		return nil
	})
	return complaints, err
}
