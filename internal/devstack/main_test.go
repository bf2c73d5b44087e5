package devstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// envHelper makes the test binary act as another process that uses this package.
const envHelper = "FENCELINE_DEVSTACK_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(envHelper) {
	case "":
		os.Exit(m.Run())
	case "hold": // start a server, say where it is, and hold it until killed
		server, err := StartPostgres(context.Background(), PostgresConfig{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(server.DSN("postgres"), server.PID(), server.dir)
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "round", "fetch": // start, use and stop a server, from the machine's binaries or fetched ones
		progress := func(s string) { fmt.Println(s) }
		cfg := PostgresConfig{Progress: progress}
		if os.Getenv(envHelper) == "fetch" {
			binaries, err := fetchedPostgres(context.Background(), FetchedPostgres, progress)
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			cfg.Binaries = &binaries
		}
		server, err := StartPostgres(context.Background(), cfg)
		if err == nil {
			err = ask(server.DSN("postgres"))
		}
		if err == nil {
			err = server.Stop(context.Background())
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Printf("uid %d ran PostgreSQL %s from %s\n", os.Getuid(), server.Version(), server.Source())
	}
}

func ask(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var one int
	return conn.QueryRow(ctx, "select 1").Scan(&one)
}

// helper prepares this test binary to run as another process, as owner if that is set. Its files are where owner can
// reach them. The directory is removed after the test.
func helper(t *testing.T, what string, owner *supervise.User) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir = openDir(t, owner)
	program := filepath.Join(dir, "helper")
	if err := copySelf(program); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(program)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), envHelper+"="+what, "HOME="+dir, "TMPDIR="+dir)
	runAs(cmd, owner)
	return cmd, dir
}

// openDir is a temporary directory that everybody can enter; t.TempDir has a parent that others can't.
func openDir(t *testing.T, owner *supervise.User) string {
	t.Helper()
	dir, err := ScratchDir("test", false, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// until waits for something that another process does.
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

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

// fakePostgres makes a directory with programs that say they are PostgreSQL of some version.
func fakePostgres(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s'\n", name, version)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error doesn't say %q: %v", part, err)
		}
	}
}
