package maven

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Project is a pom.xml, and where the jars that it needs at run time go.
type Project struct {
	Name string // of its file and its log
	POM  []byte
	Dir  string // relative to the home of all
}

// Fetch copies the projects' jars into home, which appears complete or not at
// all. Its parent must exist, and whoever calls must be the only one who does.
// Maven ends with ctx, and with this process.
func Fetch(ctx context.Context, home string, projects ...Project) error {
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
	for _, p := range projects {
		if err := copyJars(ctx, guard, mvn, staging, p); err != nil {
			return err
		}
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return err
	}
	return os.Rename(staging, home)
}

func copyJars(ctx context.Context, guard *supervise.Guard, mvn, staging string, p Project) error {
	file := filepath.Join(staging, p.Name)
	if err := os.WriteFile(file, p.POM, 0o644); err != nil {
		return err
	}
	log, err := os.Create(file + ".log")
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	process, err := guard.Start(supervise.Spec{
		Path: mvn,
		Args: []string{"-q", "-B", "-ntp", "-f", file, "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=" + filepath.Join(staging, p.Dir)},
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
		return fmt.Errorf("%w: %s", process.Err(), supervise.Tail(log.Name()))
	}
	return nil
}
