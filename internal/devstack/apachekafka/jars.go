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

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/maven"
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
		if err := maven.Fetch(ctx, home, maven.Project{Name: "pom.xml", POM: pom, Dir: "lib"}); err != nil {
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
