package devstack

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// mavenRepository is a Maven repository on loopback in which lies whatever the Maven of this machine can get: asked for
// an artifact's file, it has Maven copy it from its local repository or from wherever that is told to look. It serves
// the one fetch and ends with it.
type mavenRepository struct {
	url    string
	mvn    string
	ctx    context.Context // of the fetch: Maven ends with it
	dir    string
	server *http.Server

	mu  sync.Mutex
	err error // of the last Maven that failed
}

func serveMaven(ctx context.Context, mvn string) (*mavenRepository, error) {
	dir, err := os.MkdirTemp("", "fenceline-maven-*")
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("devstack: serve what Maven fetches: %w", err)
	}
	m := &mavenRepository{url: "http://" + listener.Addr().String(), mvn: mvn, ctx: ctx, dir: dir}
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = m.server.Serve(listener) }()
	return m, nil
}

// ServeHTTP answers GET /group/with/slashes/artifact/version/artifact-version.jar. Checksums aren't served: Maven has
// compared them.
func (m *mavenRepository) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	artifact, ok := mavenArtifact(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	file, err := m.copy(artifact, path.Base(r.URL.Path))
	if err != nil {
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	http.ServeFile(w, r, file)
}

// mavenArtifact is group:artifact:version of a jar's path in a repository.
func mavenArtifact(file string) (string, bool) {
	parts := strings.Split(strings.Trim(file, "/"), "/")
	n := len(parts)
	if n < 4 || parts[n-1] != parts[n-3]+"-"+parts[n-2]+".jar" {
		return "", false
	}
	return strings.Join(parts[:n-3], ".") + ":" + parts[n-3] + ":" + parts[n-2], true
}

func (m *mavenRepository) copy(artifact, name string) (string, error) {
	cmd := exec.CommandContext(m.ctx, m.mvn, "-q", "-B", "-ntp", "dependency:copy", "-Dartifact="+artifact, "-DoutputDirectory="+m.dir)
	cmd.Dir = m.dir // no project of anybody's
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		out = bytes.TrimSpace(out)
		return "", fmt.Errorf("devstack: fetch %s with Maven: %w: %s", artifact, err, out[:min(len(out), 2000)])
	}
	return filepath.Join(m.dir, name), nil
}

func (m *mavenRepository) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *mavenRepository) close() {
	_ = m.server.Close()
	_ = os.RemoveAll(m.dir)
}
