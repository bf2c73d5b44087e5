package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// noter is a program that notes its process, its arguments and its environment in
// a file.
func noter(t *testing.T) (program, notes string) {
	dir := t.TempDir()
	program, notes = filepath.Join(dir, "program"), filepath.Join(dir, "notes")
	script := fmt.Sprintf("#!/bin/sh\n{ echo $$; echo \"$@\"; env; } > %[1]s.new && mv %[1]s.new %[1]s\nexec sleep 3\n", notes)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program, notes
}

// The measuring reads a process's figures before it lets it begin, so the program
// must be that process.
func TestTheProgramIsTheProcessThatWaited(t *testing.T) {
	t.Setenv("FENCELINE_HTTP", "0.0.0.0:1")
	program, notes := noter(t)
	c, err := startProcess(relayRun(program, job{dsn: "host=database", kafka: "broker:9092"}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	if err := c.begin(); err != nil {
		t.Fatal(err)
	}
	var text []byte
	for patience := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if text, err = os.ReadFile(notes); err == nil {
			break
		}
		if time.Now().After(patience) {
			t.Fatalf("it has not begun: %v: %s", err, c.stderr.String())
		}
	}
	lines := strings.Split(string(text), "\n")
	if lines[0] != fmt.Sprint(c.pid()) {
		t.Errorf("the program is process %s, and %d is measured", lines[0], c.pid())
	}
	if !strings.HasPrefix(lines[1], "run -kafka broker:9092 ") {
		t.Errorf("it was started with %q", lines[1])
	}
	if !strings.Contains(string(text), "FENCELINE_POSTGRES_DSN=host=database\n") {
		t.Errorf("it isn't told its database: %s", text)
	}
	if strings.Contains(string(text), "FENCELINE_HTTP") {
		t.Error("it has a setting of whoever measures")
	}
}

func TestAProgramThatIsNotToldToNeverBegins(t *testing.T) {
	program, notes := noter(t)
	c, err := startProcess(relayRun(program, job{}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	_ = c.in.Close()
	if err := c.cmd.Wait(); err == nil {
		t.Error("it has ended as if it had worked")
	}
	if _, err := os.Stat(notes); !os.IsNotExist(err) {
		t.Errorf("it has begun by itself: %v", err)
	}
}
