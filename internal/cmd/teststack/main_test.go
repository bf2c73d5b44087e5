package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/kafkatest"
)

// envMain makes the test binary be teststack itself.
const envMain = "FENCELINE_TESTSTACK_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		_ = os.Unsetenv(envMain)
		main()
	}
	os.Exit(m.Run())
}

func teststack(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envMain+"=1")
	return cmd
}

// flags are those that fit this run: Kafka takes its time, so it is started only where tests are run against it.
func flags(t *testing.T) []string {
	if kafkatest.Real(t) {
		return []string{"-kafka"}
	}
	return nil
}

func TestTheExitCodeIsTheCommands(t *testing.T) {
	cmd := teststack("--", "/bin/sh", "-c", "test -n \"$FENCELINE_TEST_POSTGRES\" && exit 7")
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

func TestAServerThatCannotStartFailsLoudlyAndRunsNothing(t *testing.T) {
	cmd := teststack("--", "/bin/sh", "-c", "echo ran the command")
	cmd.Env = append(cmd.Env, "FENCELINE_POSTGRES_BIN=/nowhere")
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || strings.Contains(string(out), "ran the command") || !strings.Contains(string(out), "FENCELINE_POSTGRES_BIN") {
		t.Fatalf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

func TestAVersionThatCannotBeHadFailsLoudlyAndRunsNothing(t *testing.T) {
	cmd := teststack("-postgres-version", "9", "--", "/bin/sh", "-c", "echo ran the command")
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || strings.Contains(string(out), "ran the command") || !strings.Contains(string(out), "PostgreSQL 9") {
		t.Fatalf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

func TestWrongUseIsExitCodeTwo(t *testing.T) {
	for _, args := range [][]string{{}, {"-no-such-flag", "--", "true"}} {
		cmd := teststack(args...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "usage: teststack") {
			t.Errorf("%q: exit code %d: %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

func TestTheServersServeTheCommandAndGoWhenTeststackIsKilled(t *testing.T) {
	cmd := teststack(append(flags(t), "--", "/bin/sh", "-c", "echo $FENCELINE_TEST_POSTGRES $FENCELINE_TEST_KAFKA_ADDR; read -r forever")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if len(fields) != 1+len(flags(t)) {
		_ = cmd.Process.Kill()
		t.Fatalf("the command saw %q", line)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, fields[0])
	if err != nil {
		t.Error(err)
	} else {
		_ = conn.Close(ctx)
	}
	if len(fields) > 1 {
		kafkatest.Topic(t, fields[1], 1)
	}
	_ = cmd.Process.Kill()
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()

	dsn, err := url.Parse(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range append([]string{dsn.Host}, fields[1:]...) {
		deadline := time.Now().Add(time.Minute)
		for {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				break
			}
			_ = c.Close()
			if time.Now().After(deadline) {
				t.Fatalf("the server on %s is still there", addr)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}
