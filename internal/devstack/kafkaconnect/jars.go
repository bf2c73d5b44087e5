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

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/maven"
)

// Version is the Debezium that runs; it is the one in plugin-pom.xml.
const Version = "3.6.1.Final"

var (
	//go:embed connect-pom.xml
	connectPOM []byte
	//go:embed plugin-pom.xml
	pluginPOM []byte
)

// jars is what a worker runs from.
type jars struct {
	Java    string // the program
	Libs    string // the directory of the worker's jars
	Plugins string // the directory with a directory for each plugin
}

// find returns what is in the cache, fetching it first if it isn't there.
func find(ctx context.Context, progress func(string)) (jars, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return jars{}, fmt.Errorf("kafkaconnect: Kafka Connect needs Java 17 or newer in PATH: %w", err)
	}
	cache, err := devstack.CacheDir()
	if err != nil {
		return jars{}, err
	}
	// The name carries what the jars depend on, so a changed pom.xml never finds old jars.
	sum := sha256.Sum256(slices.Concat(connectPOM, pluginPOM))
	home := filepath.Join(cache, "connect-"+Version+"-"+hex.EncodeToString(sum[:4]))
	found := jars{Java: java, Libs: filepath.Join(home, "libs"), Plugins: filepath.Join(home, "plugins")}

	unlock, err := devstack.Lock(ctx, home+".lock") // one process fetches, the others wait and find it done
	if err != nil {
		return jars{}, err
	}
	defer unlock()
	if _, err := os.Stat(home); err == nil {
		return found, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return jars{}, fmt.Errorf("kafkaconnect: %w", err)
	}
	progress("fetching Debezium " + Version + " and Kafka Connect with Maven (once, kept in " + cache + ")")
	if err := maven.Fetch(ctx, home, maven.Project{Name: "connect-pom.xml", POM: connectPOM, Dir: "libs"},
		maven.Project{Name: "plugin-pom.xml", POM: pluginPOM, Dir: "plugins/debezium-connector-postgres"}); err != nil {
		return jars{}, fmt.Errorf("kafkaconnect: fetch Debezium %s with Maven: %w", Version, err)
	}
	return found, nil
}
