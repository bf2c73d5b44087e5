package migrations

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
)

// migration is one pair of files.
type migration struct {
	Part       Part
	Version    int
	Name       string // "init" of 001_init.up.sql
	MinLibrary int
	Checksum   string // of the up template, hex
	up, down   string // templates
}

func (m *migration) String() string { return fmt.Sprintf("%s/%03d_%s", m.Part, m.Version, m.Name) }

// FileError says what is wrong with a migration file. It is a mistake in the
// program's own files, not in the database.
type FileError struct {
	File   string
	Reason string
}

// Error names the file and what is wrong with it.
func (e *FileError) Error() string { return fmt.Sprintf("migrations: %s: %s", e.File, e.Reason) }

var (
	fileName    = regexp.MustCompile(`^(\d{3})_([a-z0-9]+(?:_[a-z0-9]+)*)\.(up|down)\.sql$`)
	minLibrary  = regexp.MustCompile(`^-- min-library: (\d+)\s*$`)
	placeholder = regexp.MustCompile(`@[a-z_]+@`)
	// A file that ends its transaction would leave half of itself behind when
	// it fails. (PL/pgSQL's begin has no semicolon and its end is not listed.)
	transaction = regexp.MustCompile(`(?im)^\s*(commit|rollback|begin|start\s+transaction)(\s+(work|transaction))?\s*;`)
)

// load reads one part's files and refuses anything but pairs numbered 1, 2, 3,
// … in the order of their names.
func load(files fs.FS, part Part) ([]*migration, error) {
	entries, err := fs.ReadDir(files, string(part))
	if err != nil {
		return nil, fmt.Errorf("migrations: read the files of the %s part: %w", part, err)
	}
	byVersion := map[int]*migration{}
	for _, entry := range entries {
		file := path.Join(string(part), entry.Name())
		match := fileName.FindStringSubmatch(entry.Name())
		if match == nil {
			return nil, &FileError{file, "the name is not of the form NNN_lower_case_name.up.sql or .down.sql"}
		}
		version, _ := strconv.Atoi(match[1])
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return nil, fmt.Errorf("migrations: read %s: %w", file, err)
		}
		if err := vet(string(text)); err != nil {
			return nil, &FileError{file, err.Error()}
		}
		m := byVersion[version]
		if m == nil {
			m = &migration{Part: part, Version: version, Name: match[2]}
			byVersion[version] = m
		} else if m.Name != match[2] {
			return nil, &FileError{file, fmt.Sprintf("duplicate number %s, which %s has as well", match[1], m)}
		}
		if match[3] == "down" {
			m.down = string(text)
			continue
		}
		m.up = string(text)
		sum := sha256.Sum256(text)
		m.Checksum = hex.EncodeToString(sum[:])
		if m.MinLibrary, err = header(m.up, version); err != nil {
			return nil, &FileError{file, err.Error()}
		}
	}

	var all []*migration
	for _, m := range byVersion {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *migration) int { return a.Version - b.Version })
	for i, m := range all {
		switch {
		case m.Version != i+1:
			return nil, &FileError{m.String(), fmt.Sprintf("number %03d is missing before it; numbers run from 001 without a gap", i+1)}
		case m.up == "":
			return nil, &FileError{m.String() + ".up.sql", "there is a down file, but no up file (or it is empty)"}
		case m.down == "":
			return nil, &FileError{m.String() + ".down.sql", "there is an up file, but no down file (or it is empty)"}
		}
	}
	return all, nil
}

// vet refuses what would be found only when it runs, or never.
func vet(text string) error {
	if found := transaction.FindString(text); found != "" {
		return fmt.Errorf("%q ends or begins a transaction; each migration runs in one that the migrator owns", strings.TrimSpace(found))
	}
	if found := placeholder.FindString(schema.Expand(text, schema.Default)); found != "" {
		return fmt.Errorf("unknown placeholder %s", found)
	}
	return nil
}

// header finds the min-library line among the comments a file begins with.
func header(text string, version int) (int, error) {
	for line := range strings.Lines(text) {
		if match := minLibrary.FindStringSubmatch(strings.TrimRight(line, "\r\n")); match != nil {
			n, err := strconv.Atoi(match[1])
			if err != nil || n < 1 || n > version {
				return 0, fmt.Errorf("min-library is %s, want 1 to %d: a library that knows this migration must be able to run on it", match[1], version)
			}
			return n, nil
		}
		if !strings.HasPrefix(line, "--") {
			break
		}
	}
	return 0, errors.New("no line `-- min-library: N` among the comments it begins with")
}
