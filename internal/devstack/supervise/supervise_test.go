//go:build unix

package supervise

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("FENCELINE_SUPERVISE_TEST_PARENT"); dir != "" {
		parent(dir)
	}
	os.Exit(m.Run())
}

// parent starts a stubborn child under a guard and holds still until it is killed.
func parent(dir string) {
	guard, err := NewGuard(dir)
	if err != nil {
		panic(err)
	}
	p, err := guard.Start(Spec{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM INT HUP; while :; do sleep 1; done"}, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		panic(err)
	}
	fmt.Println(p.PID())
	select {}
}

func alive(pid int) bool {
	table, err := processTable()
	if err != nil {
		panic(err)
	}
	e, ok := table[pid]
	return ok && e.state != 'Z'
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAStubbornChildAndTheDirectoryGoWhenTheParentIsKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data with space")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FENCELINE_SUPERVISE_TEST_PARENT="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !alive(pid) {
		t.Fatalf("the parent says %q", line)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	until(t, "the child is gone", func() bool { return !alive(pid) })
	until(t, "the directory is gone", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
}

func TestCrashEndsChildrenThatLeadGroupsOfTheirOwn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	guard, err := NewGuard("")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pids")
	p, err := guard.Start(Spec{
		Path: "/bin/sh",
		// set -m gives each background child a group of its own, as PostgreSQL's backends have.
		Args: []string{"-c", `set -m; sleep 300 & echo $! >>"$0"; sleep 300 & echo $! >>"$0"; wait`, file},
		Env:  []string{"PATH=/usr/bin:/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	until(t, "two children", func() bool {
		content, _ := os.ReadFile(file)
		children = strings.Fields(string(content))
		return len(children) == 2
	})
	if err := p.Crash(ctx); err != nil {
		t.Fatal(err)
	}
	for _, child := range children {
		if pid, _ := strconv.Atoi(child); alive(pid) {
			t.Errorf("child %d survived", pid)
		}
	}
	if p.Err() == nil {
		t.Error("a crash is not a clean end")
	}
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestACleanCloseLeavesTheDirectoryAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	guard, err := NewGuard(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := guard.Start(Spec{Path: "/bin/sh", Args: []string{"-c", "exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Err() == nil || !strings.Contains(p.Err().Error(), "3") {
		t.Errorf("the child ended with %v", p.Err())
	}
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if _, err := guard.Start(Spec{Path: "/bin/sh"}); err == nil {
		t.Error("a closed guard started a child that nothing guards")
	}
}

func TestAChildInheritsNothingOfOurEnvironment(t *testing.T) {
	guard, err := NewGuard("")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCELINE_SECRET", "x")
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	p, err := guard.Start(Spec{Path: "/usr/bin/env", Output: file})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	content, _ := os.ReadFile(file.Name())
	if strings.Contains(string(content), "FENCELINE_SECRET") {
		t.Error("the child sees our secret")
	}
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
}
