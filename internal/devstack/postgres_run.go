package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

func (p *Postgres) dataDir() string { return filepath.Join(p.dir, "data") }

// run starts one of the server's programs as the server's account; its output is appended to the log.
func (p *Postgres) run(program, endWith string, args ...string) (*supervise.Process, error) {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	return p.guard.Start(supervise.Spec{
		Path:    filepath.Join(p.binaries.Dir, program),
		Args:    args,
		Env:     serverEnv(),
		User:    p.owner,
		Output:  log,
		EndWith: endWith,
	})
}

func (p *Postgres) initdb(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.StartTimeout)
	defer cancel()
	secret := filepath.Join(p.dir, "password")
	if err := os.WriteFile(secret, []byte(p.password), 0o600); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	defer func() { _ = os.Remove(secret) }()
	if err := giveTo(secret, p.owner); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	process, err := p.run("initdb", "KILL",
		"-D", p.dataDir(), "-U", "postgres", "-A", "scram-sha-256", "--pwfile", secret,
		"-E", "UTF8", "--locale=C",
		"--wal-segsize=1", // megabyte: a fresh cluster is small, and so is each copy of it
		"--no-sync", "--no-instructions")
	if err != nil {
		return err
	}
	if err := process.Wait(ctx); err != nil {
		_ = process.Crash(context.WithoutCancel(ctx))
		return fmt.Errorf("devstack: initdb: %w", err)
	}
	if process.Err() != nil {
		return fmt.Errorf("devstack: initdb: %w: %s", process.Err(), p.logTail())
	}
	return nil
}

// errPortTaken reports that another process listens on the port.
var errPortTaken = errors.New("the port is taken")

// startOnFreePort starts the server, choosing another port whenever somebody was faster.
func (p *Postgres) startOnFreePort(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		port, err := FreePort()
		if err != nil {
			return err
		}
		p.port = port
		err = p.start(ctx)
		if !errors.Is(err, errPortTaken) || attempt == 10 {
			return err
		}
	}
}

func (p *Postgres) settings() []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_connections":         "200",
		"wal_keep_size":           "64MB",
		"synchronous_commit":      "on",
		"log_min_messages":        "warning",
		"log_checkpoints":         "off", // each CREATE DATABASE makes two
		// Shared memory as files of the data directory: whatever SIGKILL leaves behind goes with them.
		"dynamic_shared_memory_type": "mmap",
	}
	if !p.cfg.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	if p.cfg.Archive {
		settings["archive_mode"] = "on"
		settings["archive_command"] = "cp %p " + p.archiveDir() + "/%f"
	}
	maps.Copy(settings, p.cfg.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// start runs the server on p.port and waits until it is ready. The caller holds p.mu or is alone.
func (p *Postgres) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.StartTimeout)
	defer cancel()
	var logged int64
	if info, err := os.Stat(p.LogFile()); err == nil {
		logged = info.Size()
	}
	process, err := p.run("postgres", "QUIT", append([]string{"-D", p.dataDir()}, p.settings()...)...)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-process.Done():
			tail := p.logSince(logged)
			if strings.Contains(tail, "Address already in use") {
				return fmt.Errorf("devstack: start PostgreSQL on port %d: %w: %s", p.port, errPortTaken, tail)
			}
			return fmt.Errorf("devstack: PostgreSQL %s ended while starting: %w: %s", p.binaries.Version, process.Err(), tail)
		case <-ctx.Done():
			_ = process.Crash(context.WithoutCancel(ctx))
			return fmt.Errorf("devstack: PostgreSQL %s was not ready in time: %w: %s", p.binaries.Version, ctx.Err(), p.logSince(logged))
		case <-ticker.C:
			if ready, shmID := p.readStatus(process.PID()); ready {
				p.process, p.shmID = process, shmID
				return nil
			}
		}
	}
}

// readStatus reads postmaster.pid: line 1 is the postmaster's process id, line 7 ends in the id of its shared memory
// segment, line 8 is its state. A file left by an earlier server has another first line.
func (p *Postgres) readStatus(pid int) (ready bool, shmID int) {
	content, err := os.ReadFile(filepath.Join(p.dataDir(), "postmaster.pid"))
	if err != nil {
		return false, 0
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(pid) || strings.TrimSpace(lines[7]) != "ready" {
		return false, 0
	}
	if segment := strings.Fields(lines[6]); len(segment) == 2 {
		shmID, _ = strconv.Atoi(segment[1])
	}
	return true, shmID
}

// end asks the server to end, more firmly as time passes. The caller holds p.mu.
func (p *Postgres) end(ctx context.Context, first os.Signal) error {
	if p.process == nil {
		return nil
	}
	process := p.process
	// It writes its last checkpoint first, which takes as long as a busy disk wants.
	polite, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := process.Signal(first); err != nil {
		return err
	}
	err := process.Wait(polite)
	if err != nil {
		firm, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = process.Signal(immediateShutdown)
		if process.Wait(firm) != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if err := process.Crash(last); err != nil {
				return err
			}
		}
		err = fmt.Errorf("devstack: PostgreSQL didn't stop in order: %w: %s", err, p.logTail())
	} else {
		p.shmID = 0 // it removed its segment itself
	}
	p.process = nil
	return err
}

func (p *Postgres) logTail() string { return p.logSince(0) }

// logSince returns the last lines that the server logged after offset, for an error message.
func (p *Postgres) logSince(offset int64) string {
	content, err := os.ReadFile(p.LogFile())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	if offset < int64(len(content)) {
		content = content[offset:]
	}
	content = bytes.TrimSpace(content)
	if keep := 2000; len(content) > keep {
		content = content[len(content)-keep:]
	}
	return string(content)
}
