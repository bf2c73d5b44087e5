package apachekafka

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Version is the Apache Kafka that runs; it is the one in pom.xml.
const Version = "4.4.0"

//go:embed pom.xml
var pom []byte

// install is an unpacked Kafka.
type install struct {
	java    string
	lib     string // the directory of the jars
	archive string // class data archive; empty while there is none
}

// find returns the Kafka in the cache, fetching it first if it isn't there.
func find(ctx context.Context, progress func(string)) (install, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return install{}, fmt.Errorf("apachekafka: Apache Kafka needs Java 17 or newer in PATH: %w", err)
	}
	if java, err = filepath.EvalSymlinks(java); err != nil {
		return install{}, fmt.Errorf("apachekafka: %w", err)
	}
	cache, err := devstack.CacheDir()
	if err != nil {
		return install{}, err
	}
	// The name carries what the jars depend on, so a changed pom.xml never finds old jars.
	sum := sha256.Sum256(pom)
	home := filepath.Join(cache, "kafka-"+Version+"-"+hex.EncodeToString(sum[:4]))
	kafka := install{java: java, lib: filepath.Join(home, "lib")}

	unlock, err := devstack.Lock(ctx, home+".lock") // one process fetches, the others wait and find it done
	if err != nil {
		return install{}, err
	}
	defer unlock()
	if _, err := os.Stat(home); errors.Is(err, os.ErrNotExist) {
		progress("fetching Apache Kafka " + Version + " with Maven (once, kept in " + cache + ")")
		if err := fetch(ctx, home); err != nil {
			return install{}, fmt.Errorf("apachekafka: fetch Apache Kafka %s with Maven: %w", Version, err)
		}
	} else if err != nil {
		return install{}, fmt.Errorf("apachekafka: %w", err)
	}

	// An archive fits the Java that made it.
	sum = sha256.Sum256([]byte(java))
	archive := filepath.Join(home, "classes-"+hex.EncodeToString(sum[:4])+".jsa")
	if _, err := os.Stat(archive); errors.Is(err, os.ErrNotExist) {
		progress("preparing Apache Kafka " + Version + " (once)")
		if err := makeArchive(ctx, kafka, archive); err != nil {
			return install{}, err
		}
	}
	kafka.archive = archive
	return kafka, nil
}

// fetch copies the jars into home/lib; home appears complete or not at all.
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
	if err := os.Chmod(staging, 0o755); err != nil {
		return err
	}
	file := filepath.Join(staging, "pom.xml")
	if err := os.WriteFile(file, pom, 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(staging, "maven.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	process, err := guard.Start(supervise.Spec{
		Path: mvn,
		Args: []string{"-q", "-B", "-ntp", "-f", file, "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=" + filepath.Join(staging, "lib")},
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
	return os.Rename(staging, home)
}

// makeArchive runs a broker once and has Java write down the classes that it loaded.
func makeArchive(ctx context.Context, kafka install, archive string) error {
	// Java writes the archive at the end of the run; renaming it makes it appear whole.
	unfinished := archive + ".unfinished"
	defer func() { _ = os.Remove(unfinished) }()
	broker, err := start(ctx, kafka, Config{}, "-XX:ArchiveClassesAtExit="+unfinished)
	if err != nil {
		return err
	}
	if err := broker.Stop(ctx); err != nil {
		return err
	}
	if err := os.Rename(unfinished, archive); err != nil {
		return fmt.Errorf("apachekafka: make the class archive: %w", err)
	}
	return nil
}

// tail returns the end of a log, for an error message.
func tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	if keep := 3000; len(content) > keep {
		content = content[len(content)-keep:]
	}
	return strings.TrimSpace(string(content))
}
