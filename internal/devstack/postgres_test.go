package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

func startServer(t *testing.T, cfg PostgresConfig) *Postgres {
	t.Helper()
	server, err := StartPostgres(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(context.Background()) })
	return server
}

func TestTwoServersAtOnceDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one, two := startServer(t, PostgresConfig{}), startServer(t, PostgresConfig{})
	if one.Port() == two.Port() || one.dir == two.dir {
		t.Fatalf("they share port %d or directory %s", one.Port(), one.dir)
	}
	if err := one.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if !gone(one.dir) {
		t.Errorf("%s is still there", one.dir)
	}
	if err := ask(one.DSN("postgres")); err == nil {
		t.Error("the stopped server answers")
	}
	if err := ask(two.DSN("postgres")); err != nil {
		t.Errorf("the other server: %v", err)
	}
}

func TestTheServerIsReachableOnLoopbackOnlyAndWithItsPasswordOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := startServer(t, PostgresConfig{})
	if server.Port() >= 32768 {
		t.Errorf("port %d may be given to an outgoing connection while the server is down", server.Port())
	}
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for name, want := range map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "password_encryption": "scram-sha-256"} {
		var got string
		if err := conn.QueryRow(ctx, "select current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	bad, err := pgx.ParseConfig(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	bad.Password = "guess"
	if c, err := pgx.ConnectConfig(ctx, bad); err == nil {
		_ = c.Close(ctx)
		t.Error("a wrong password was accepted")
	}
}

func TestDurableKeepsFsyncOnAndSettingsWin(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		cfg                     PostgresConfig
		fsync, full, work, sync string
	}{
		{PostgresConfig{}, "off", "off", "4MB", "on"},
		{PostgresConfig{Durable: true, Settings: map[string]string{"work_mem": "5MB"}}, "on", "on", "5MB", "on"},
	} {
		server := startServer(t, c.cfg)
		conn, err := pgx.Connect(ctx, server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		var fsync, full, work, sync string
		err = conn.QueryRow(ctx, "select current_setting('fsync'), current_setting('full_page_writes'), current_setting('work_mem'), current_setting('synchronous_commit')").
			Scan(&fsync, &full, &work, &sync)
		_ = conn.Close(ctx)
		if err != nil || fsync != c.fsync || full != c.full || work != c.work || sync != c.sync {
			t.Errorf("%+v: fsync %s, full_page_writes %s, work_mem %s, synchronous_commit %s, %v", c.cfg, fsync, full, work, sync, err)
		}
		_ = server.Stop(ctx)
	}
}

func TestAServerThatCannotStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := StartPostgres(context.Background(), PostgresConfig{Settings: map[string]string{"no_such_setting": "on"}})
	contains(t, err, "no_such_setting")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	binaries, ferr := FindPostgres(context.Background(), nil)
	if ferr != nil {
		t.Fatal(ferr)
	}
	if _, err := StartPostgres(ctx, PostgresConfig{Binaries: &binaries}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestAPortTakenBySomebodyElseIsNeverMistakenForTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := startServer(t, PostgresConfig{})
	if err := server.StopImmediate(ctx); err != nil {
		t.Fatal(err)
	}
	thief, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port())))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(ctx); !errors.Is(err, errPortTaken) {
		t.Fatalf("restart on a taken port: %v", err)
	}
	_ = thief.Close()
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := ask(server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
}

func TestKillLeavesNoBackendBehindAndStopNoMemory(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := startServer(t, PostgresConfig{})
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	backend := int(conn.PgConn().PID())
	busy := make(chan error, 1)
	go func() {
		// A busy backend doesn't notice that its postmaster is gone: it must be killed itself.
		_, err := conn.Exec(ctx, "do $$ begin loop end loop; end $$")
		busy <- err
	}()
	observer, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = observer.Close(ctx) }()
	until(t, "the backend is busy", func() bool {
		var active bool
		err := observer.QueryRow(ctx, "select state = 'active' from pg_stat_activity where pid = $1", backend).Scan(&active)
		return err == nil && active
	})
	shm := server.shmID
	if err := server.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if running(backend) {
		t.Errorf("backend %d survived", backend)
	}
	if err := <-busy; err == nil {
		t.Error("the busy statement was answered")
	}
	if err := server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ipcs", "-m").Output(); err == nil {
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == strconv.Itoa(shm) {
				t.Errorf("shared memory segment %d is still there", shm)
			}
		}
	}
}

// running tells whether a process exists and isn't a zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func TestTheServerAndItsDataGoWhenTheParentIsKilled(t *testing.T) {
	t.Parallel()
	cmd, _ := helper(t, "hold", nil)
	in, err := cmd.StdinPipe() // kept open: only the kill ends the helper
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
	if len(fields) != 3 {
		_ = cmd.Process.Kill()
		t.Fatalf("the helper says %q", line)
	}
	dsn, dir := fields[0], fields[2]
	postmaster, _ := strconv.Atoi(fields[1])
	if err := ask(dsn); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	until(t, "the server is gone", func() bool { return !running(postmaster) })
	until(t, "its data are gone", func() bool { return gone(dir) })
}

// anyUsers are the accounts to try as: our own, and a plain one when we are root.
func anyUsers(t *testing.T) []*supervise.User {
	t.Helper()
	users := []*supervise.User{nil}
	if os.Geteuid() == 0 {
		account, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseInt(account.Uid, 10, 64)
		gid, _ := strconv.ParseInt(account.Gid, 10, 64)
		users = append(users, &supervise.User{Name: "nobody", UID: uint32(uid), GID: uint32(gid)})
	}
	return users
}

func TestAnyUserCanRunIt(t *testing.T) {
	t.Parallel()
	for _, u := range anyUsers(t) {
		cmd, _ := helper(t, "round", u)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%+v: %v: %s", u, err, out)
		}
		t.Logf("%.1f s: %s", time.Since(began).Seconds(), strings.TrimSpace(string(out)))
	}
}

func TestTheBrokerListensOnLoopbackAndEnds(t *testing.T) {
	broker, err := StartBroker()
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(broker.Addr())
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("it listens on %s", broker.Addr())
	}
	broker.Stop()
	if conn, err := net.Dial("tcp", broker.Addr()); err == nil {
		_ = conn.Close()
		t.Fatal("it listens after Stop")
	}
}
