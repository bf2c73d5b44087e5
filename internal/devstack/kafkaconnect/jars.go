package kafkaconnect

import (
	"context"
	"crypto/sha256"
	_ "embed" // the files that Maven reads
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Version is the Debezium that runs; it is the one in plugin-pom.xml.
const Version = "3.6.1.Final"

var (
	//go:embed connect-pom.xml
	connectPOM []byte
	//go:embed plugin-pom.xml
	pluginPOM []byte
)

// install is what was unpacked.
type install struct {
	java    string
	libs    string // the directory of the worker's jars
	plugins string // the directory with a directory for each plugin
}

// find returns what is in the cache, fetching it first if it isn't there.
func find(ctx context.Context, progress func(string)) (install, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return install{}, fmt.Errorf("kafkaconnect: Kafka Connect needs Java 17 or newer in PATH: %w", err)
	}
	cache, err := devstack.CacheDir()
	if err != nil {
		return install{}, err
	}
	// The name carries what the jars depend on, so a changed pom.xml never finds old jars.
	sum := sha256.Sum256(slices.Concat(connectPOM, pluginPOM))
	home := filepath.Join(cache, "connect-"+Version+"-"+hex.EncodeToString(sum[:4]))
	found := install{java: java, libs: filepath.Join(home, "libs"), plugins: filepath.Join(home, "plugins")}

	unlock, err := devstack.Lock(ctx, home+".lock") // one process fetches, the others wait and find it done
	if err != nil {
		return install{}, err
	}
	defer unlock()
	if _, err := os.Stat(home); err == nil {
		return found, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return install{}, fmt.Errorf("kafkaconnect: %w", err)
	}
	progress("fetching Debezium " + Version + " and Kafka Connect with Maven (once, kept in " + cache + ")")
	if err := fetch(ctx, home); err != nil {
		return install{}, fmt.Errorf("kafkaconnect: fetch Debezium %s with Maven: %w", Version, err)
	}
	return found, nil
}

// fetch copies the jars into home, which appears complete or not at all.
func fetch(ctx context.Context, home string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return err
	}
	staging, err := os.MkdirTemp(filepath.Dir(home), "fetch-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staging) }()
	guard, err := supervise.NewGuard(staging)
	if err != nil {
		return err
	}
	defer func() { _ = guard.Close() }()
	for _, part := range []struct {
		name string
		pom  []byte
		dir  string
	}{{"connect-pom.xml", connectPOM, "libs"}, {"plugin-pom.xml", pluginPOM, "plugins/debezium-connector-postgres"}} {
		if err := copyJars(ctx, guard, mvn, staging, part.name, part.pom, filepath.Join(staging, part.dir)); err != nil {
			return err
		}
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return err
	}
	return os.Rename(staging, home)
}

func copyJars(ctx context.Context, guard *supervise.Guard, mvn, staging, name string, pom []byte, to string) error {
	file := filepath.Join(staging, name)
	if err := os.WriteFile(file, pom, 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(staging, name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	process, err := guard.Start(supervise.Spec{
		Path:   mvn,
		Args:   []string{"-q", "-B", "-ntp", "-f", file, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + to},
		Env:    os.Environ(), // Maven finds its settings, repository and proxies there
		Dir:    staging,
		Output: log,
	})
	if err != nil {
		return err
	}
	if err := process.Wait(ctx); err != nil {
		_ = process.Crash(context.WithoutCancel(ctx))
		return err
	}
	if process.Err() != nil {
		return fmt.Errorf("%w: %s", process.Err(), tail(log.Name()))
	}
	return nil
}

// tail returns the end of a log, for an error message.
func tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return strings.TrimSpace(string(content[max(0, len(content)-3000):]))
}
