package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	publicURL = "https://vuln.go.dev"

	pinnedModule  = "golang.org/x/vulndb"
	pinnedVersion = "v0.0.0-20261105234957-e22db6528018"
	pinnedSum     = "h1:mfngRv0Yoh0VApsXKEN82CjD99kl7mtparN3bs3JnqI="

	// fewestReports guards against a pin whose layout changed: a database that
	// is nearly empty would find nothing and look like good news.
	fewestReports = 4000
)

// probe asks a database for the time of its last change.
func probe(ctx context.Context, base string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/index/db.json", nil)
	if err != nil {
		return time.Time{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return time.Time{}, fmt.Errorf("%s answers %s", req.URL, resp.Status)
	}
	var meta dbMeta
	if err := json.NewDecoder(resp.Body).Decode(&meta); err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", req.URL, err)
	}
	if meta.Modified.IsZero() {
		return time.Time{}, fmt.Errorf("%s doesn't say when it was modified", req.URL)
	}
	return meta.Modified, nil
}

type reportSet struct {
	fs       fs.FS
	modified time.Time
}

// download fetches the pinned module into Go's module cache and returns the
// reports in it. It fails on any checksum but the pinned one, whatever the
// settings of the checksum database are.
func download(ctx context.Context) (reportSet, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", pinnedModule+"@"+pinnedVersion)
	cmd.Dir = os.TempDir() // outside our module: the pin is this file's, not go.mod's
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	var mod struct{ Dir, Info, Sum, Error string }
	if err := json.Unmarshal(stdout.Bytes(), &mod); err != nil {
		return reportSet{}, fmt.Errorf("go mod download %s@%s: %w: %s", pinnedModule, pinnedVersion, errors.Join(runErr, err), stderr.String())
	}
	if runErr != nil { // the reason is in the answer, not on stderr
		return reportSet{}, fmt.Errorf("go mod download %s@%s: %w: %s", pinnedModule, pinnedVersion, runErr, mod.Error)
	}
	if mod.Sum != pinnedSum {
		return reportSet{}, fmt.Errorf("%s@%s has checksum %s, pinned is %s", pinnedModule, pinnedVersion, mod.Sum, pinnedSum)
	}
	raw, err := os.ReadFile(mod.Info)
	if err != nil {
		return reportSet{}, err
	}
	var info struct{ Time time.Time }
	if err := json.Unmarshal(raw, &info); err != nil {
		return reportSet{}, fmt.Errorf("%s: %w", mod.Info, err)
	}
	return reportSet{fs: os.DirFS(filepath.Join(mod.Dir, "data", "osv")), modified: info.Time}, nil
}

// goVersion names the Go release that commands run with env will use. Fetching a
// release that isn't there yet happens here, so that its failure is not taken for
// one of govulncheck.
func goVersion(ctx context.Context, env []string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Env, cmd.Stderr = env, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask Go for its version: %w: %s", err, stderr.String())
	}
	return string(bytes.TrimSpace(out)), nil
}

func fileURL(dir string) string {
	path := filepath.ToSlash(dir)
	if path[0] != '/' { // a Windows drive letter
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}
