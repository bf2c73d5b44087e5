package devstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// OldestPostgres is the oldest major version that will do.
const OldestPostgres = 15

// Binaries are a PostgreSQL that can be started.
type Binaries struct {
	Dir     string // holds postgres and initdb
	Version string // as the server itself puts it, such as "15.12"
	Major   int
	Source  string // where it was found, for a person to read
}

// ErrNoPostgres reports that this machine has no PostgreSQL that will do.
var ErrNoPostgres = errors.New("devstack: no PostgreSQL found")

// FindPostgres finds the binaries of a PostgreSQL, fetching them if need be (see the package's introduction for the
// order). progress is told what a person waiting should know; it may be nil.
func FindPostgres(ctx context.Context, progress func(string)) (Binaries, error) {
	found, err := installedPostgres(ctx, os.Getenv("FENCELINE_POSTGRES_BIN"), os.Getenv("PATH"), installGlobs)
	if !errors.Is(err, ErrNoPostgres) {
		return found, err
	}
	return fetchedPostgres(ctx, FetchedPostgres, progress)
}

// FindPostgresMajor is FindPostgres for one major version: what this machine has of it, else the prebuilt binaries. It
// never settles for another version.
func FindPostgresMajor(ctx context.Context, major int, progress func(string)) (Binaries, error) {
	version, ok := prebuilt[major]
	if !ok {
		return Binaries{}, fmt.Errorf("devstack: PostgreSQL %d is none that can be fetched: there are %v", major, slices.Sorted(maps.Keys(prebuilt)))
	}
	if override := os.Getenv("FENCELINE_POSTGRES_BIN"); override != "" {
		b, err := installedPostgres(ctx, override, "", nil)
		if err == nil && b.Major != major {
			err = fmt.Errorf("devstack: FENCELINE_POSTGRES_BIN=%s is PostgreSQL %s, and PostgreSQL %d is asked for: name the directory of its binaries, or unset it", override, b.Version, major)
		}
		return b, err
	}
	for _, glob := range installGlobs {
		dirs, _ := filepath.Glob(glob)
		for _, dir := range dirs {
			if b, err := probe(ctx, dir); err == nil && b.Major == major {
				b.Source = "this machine"
				return b, nil
			}
		}
	}
	return fetchedPostgres(ctx, version, progress)
}

// installGlobs are the directories in which package managers put PostgreSQL's binaries.
var installGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// installedPostgres looks at the override (which must work if it is set), at path, and at globs, of which the newest
// version wins.
func installedPostgres(ctx context.Context, override, path string, globs []string) (Binaries, error) {
	if override != "" {
		b, err := probe(ctx, override)
		if err != nil {
			return b, fmt.Errorf("devstack: FENCELINE_POSTGRES_BIN=%s: %w: name the directory that holds postgres and initdb of PostgreSQL %d or newer, or unset it", override, err, OldestPostgres)
		}
		b.Source = "FENCELINE_POSTGRES_BIN"
		return b, nil
	}
	for _, dir := range filepath.SplitList(path) {
		// Links in PATH are followed, since initdb looks for its files relative to where it really is.
		file, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil {
			continue
		}
		if b, err := probe(ctx, filepath.Dir(file)); err == nil {
			b.Source = "PATH"
			return b, nil
		}
	}
	var best Binaries
	for _, glob := range globs {
		dirs, _ := filepath.Glob(glob)
		for _, dir := range dirs {
			if b, err := probe(ctx, dir); err == nil && newer(b.Version, best.Version) {
				b.Source = "this machine"
				best = b
			}
		}
	}
	if best.Dir == "" {
		return best, ErrNoPostgres
	}
	return best, nil
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[^ \n]*)`)

// probe asks the binaries in dir for their version, as the account that would run them: a directory that this account
// can't enter is as good as absent.
func probe(ctx context.Context, dir string) (Binaries, error) {
	owner, err := serverUser()
	if err != nil {
		return Binaries{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b := Binaries{Dir: dir}
	for _, name := range []string{"initdb", "postgres"} {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, name), "--version")
		cmd.Dir = "/"
		cmd.Env = serverEnv()
		runAs(cmd, owner)
		out, err := cmd.Output()
		if err != nil {
			return b, fmt.Errorf("run %s: %w", cmd, err)
		}
		match := versionText.FindSubmatch(out)
		if match == nil {
			return b, fmt.Errorf("run %s: it answered %q", cmd, out)
		}
		b.Version = string(match[1])
		b.Major, _ = strconv.Atoi(string(match[2]))
	}
	if b.Major < OldestPostgres {
		return b, fmt.Errorf("PostgreSQL %s in %s is too old: need %d or newer", b.Version, dir, OldestPostgres)
	}
	return b, nil
}

var digits = regexp.MustCompile(`\d+`)

// newer compares versions number by number.
func newer(a, b string) bool {
	as, bs := digits.FindAllString(a, -1), digits.FindAllString(b, -1)
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if x != y {
			return x > y
		}
	}
	return len(as) > len(bs)
}

// serverEnv is the whole environment of a server: nothing of ours, and the same language, order and time everywhere.
func serverEnv() []string {
	return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
}
