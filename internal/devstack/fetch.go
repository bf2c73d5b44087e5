package devstack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// FetchedPostgres is the version of the prebuilt binaries that FindPostgres fetches.
const FetchedPostgres = string(embeddedpostgres.V18)

// prebuilt are the versions that can be fetched, by their major version.
var prebuilt = map[int]string{
	15: string(embeddedpostgres.V15),
	16: string(embeddedpostgres.V16),
	17: string(embeddedpostgres.V17),
	18: string(embeddedpostgres.V18),
}

// fetchedPostgres returns the prebuilt binaries of a version in the cache, fetching them first if they aren't there.
func fetchedPostgres(ctx context.Context, version string, progress func(string)) (Binaries, error) {
	cache, err := CacheDir()
	if err != nil {
		return Binaries{}, err
	}
	owner, err := serverUser()
	if err != nil {
		return Binaries{}, err
	}
	if owner != nil && !openToOthers(cache) {
		return Binaries{}, fmt.Errorf("devstack: user %s, who runs PostgreSQL for root, can't enter the cache directory %s: set FENCELINE_CACHE to one that it can", owner.Name, cache)
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if _, err := os.Stat(home); err != nil {
		// One process fetches, the others wait and find it done.
		unlock, err := Lock(ctx, home+".lock")
		if err != nil {
			return Binaries{}, err
		}
		defer unlock()
		if _, err := os.Stat(home); err != nil {
			if err := fetchPostgres(ctx, home, version, progress); err != nil {
				return Binaries{}, fmt.Errorf("%w: this machine has none that will do, and fetching PostgreSQL %s failed: %w (install PostgreSQL, or set FENCELINE_POSTGRES_BIN to the directory of its binaries, or FENCELINE_POSTGRES_REPOSITORY to the base URL of a Maven repository that this machine reaches)",
					ErrNoPostgres, version, err)
			}
		}
	}
	b, err := probe(ctx, filepath.Join(home, "bin"))
	if err != nil {
		return b, fmt.Errorf("devstack: the fetched PostgreSQL doesn't work: %w (to fetch it again, remove %s; or install PostgreSQL)", err, home)
	}
	b.Source = "prebuilt binaries in " + cache
	return b, nil
}

// fetchPostgres unpacks the prebuilt binaries into home, which appears complete or not at all.
//
// A child process does it. It can be killed when ctx ends, while the library can't be interrupted; and when we are
// root it runs as the server's account, so nothing that came from the network is unpacked with root's rights.
func fetchPostgres(ctx context.Context, home, version string, progress func(string)) (err error) {
	owner, err := serverUser()
	if err != nil {
		return err
	}
	staging, err := os.MkdirTemp(filepath.Dir(home), "fetch-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staging) }()
	if err := giveTo(staging, owner); err != nil {
		return err
	}
	// "go run" and "go test" build into directories that only their user can enter, so the child gets a copy.
	program := filepath.Join(staging, "fetch")
	if err := copySelf(program); err != nil {
		return err
	}

	if progress == nil {
		progress = func(string) {}
	}
	progress("fetching PostgreSQL " + version + " (once, kept in " + filepath.Dir(home) + ")")

	repository := os.Getenv("FENCELINE_POSTGRES_REPOSITORY")
	var maven *mavenRepository
	if mvn, err := exec.LookPath("mvn"); repository == "" && err == nil {
		// Maven knows this machine's mirrors, its proxies and what it has fetched before; the library knows none of it.
		if maven, err = serveMaven(ctx, mvn); err != nil {
			return err
		}
		defer maven.close()
		repository = maven.url
	}

	cmd := exec.CommandContext(ctx, program)
	cmd.Args = []string{fetchCommand, staging, repository, version}
	cmd.Dir = staging
	cmd.Env = append(serverEnv(), "HOME="+staging, "TMPDIR="+staging)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	// The child reads standard input to notice our death, see fetchMain.
	alive, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer func() { _ = alive.Close() }()
	runAs(cmd, owner)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		progress(lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if maven != nil && maven.failure() != nil {
			return maven.failure()
		}
		return fmt.Errorf("%s (%w)", strings.TrimSpace(complaint.String()), err)
	}
	return os.Rename(filepath.Join(staging, "binaries"), home)
}

func copySelf(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
