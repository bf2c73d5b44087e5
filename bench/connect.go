package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
)

// The configuration of Debezium, as its documentation advises for each purpose.
//
//go:embed debezium
var debeziumFiles embed.FS

// connectArm is Debezium's connector in a Kafka Connect worker of its own.
type connectArm struct {
	worker, connector string // files in debezium/
}

func createDebezium(ctx context.Context, conn *pgx.Conn) error {
	schema, err := debeziumFiles.ReadFile("debezium/schema.sql")
	if err == nil {
		_, err = conn.Exec(ctx, string(schema))
	}
	return err
}

func fillDebezium(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	// Routed by aggregatetype, which becomes the topic's name as it is.
	return w.fill(ctx, conn, strings.ReplaceAll(fmt.Sprintf(`
		insert into outbox (id, aggregatetype, aggregateid, type, payload)
		select gen_random_uuid(), '%s', 'key-' || i %% KEYS, 'bench.event', %s from generate_series($1::bigint, $2::bigint) i order by i`, topic, w.payloadSQL()), "KEYS", fmt.Sprint(w.Keys)))
}

// connectWorker is a running Kafka Connect.
type connectWorker struct {
	cmd   *exec.Cmd
	url   string
	dir   string
	log   string
	java  string
	args  []string
	done  chan struct{} // closed when it has ended
	ended error         // how, once done is closed
}

// startConnect starts a worker on an empty outbox of dsn, and returns when the
// connector streams.
func startConnect(ctx context.Context, c *connectArm, s *stack, dsn, topic string, say func(string, ...any)) (_ *connectWorker, err error) {
	jars, err := kafkaconnect.Find(ctx, func(what string) { say("%s", what) })
	if err != nil {
		return nil, err
	}
	port, err := devstack.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-connect-")
	if err != nil {
		return nil, err
	}
	w := &connectWorker{url: fmt.Sprintf("http://127.0.0.1:%d", port), dir: dir, log: filepath.Join(dir, "connect.log")}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	db, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return w, err
	}
	fill := strings.NewReplacer("@KAFKA@", s.kafka.Addr(), "@PLUGINS@", jars.Plugins, "@REST@", fmt.Sprintf("127.0.0.1:%d", port), "@OFFSETS@", filepath.Join(dir, "offsets"),
		"@HOST@", db.Host, "@PORT@", fmt.Sprint(db.Port), "@USER@", db.User, "@PASSWORD@", db.Password, "@DATABASE@", db.Database, "@SLOT@", db.Database)
	logging := filepath.Join(dir, "log4j2.properties")
	if err := os.WriteFile(logging, kafkaconnect.Logging, 0o600); err != nil {
		return w, err
	}
	for _, name := range []string{c.worker, c.connector} {
		text, err := debeziumFiles.ReadFile("debezium/" + name)
		if err != nil {
			return w, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(fill.Replace(string(text))), 0o600); err != nil {
			return w, err
		}
	}
	w.java, w.args = jars.Java, []string{"-Xmx512m", "-Dlog4j2.configurationFile=" + logging, "-cp", jars.Libs + "/*", "org.apache.kafka.connect.cli.ConnectStandalone",
		filepath.Join(dir, c.worker), filepath.Join(dir, c.connector)}
	return w, w.launch(ctx)
}

// launch starts the worker on the offsets that it has, and returns when the
// connector streams.
func (w *connectWorker) launch(ctx context.Context) error {
	log, err := os.Create(w.log)
	if err != nil {
		return err
	}
	defer log.Close()
	w.done = make(chan struct{})
	w.cmd = exec.Command(w.java, w.args...)
	w.cmd.Stdout, w.cmd.Stderr, w.cmd.Dir = log, log, w.dir
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		w.cmd = nil
		return err
	}
	cmd, done := w.cmd, w.done
	go func() {
		w.ended = cmd.Wait()
		close(done)
	}()
	return w.await(ctx, "the connector to stream", func() bool {
		text, _ := os.ReadFile(w.log)
		return bytes.Contains(text, []byte("Processing messages"))
	})
}

// kill ends it as a power cut would.
func (w *connectWorker) kill() {
	_ = w.cmd.Process.Kill()
	<-w.done
	w.cmd = nil
}

func (w *connectWorker) await(ctx context.Context, what string, so func() bool) error {
	deadline := time.Now().Add(2 * time.Minute)
	for !so() {
		select {
		case <-w.done:
			return fmt.Errorf("the worker of Kafka Connect ended while waiting for %s: %w\n%s", what, w.ended, w.tail())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited two minutes for %s\n%s", what, w.tail())
		}
	}
	return nil
}

func (w *connectWorker) tail() string {
	text, _ := os.ReadFile(w.log)
	return string(text[max(0, len(text)-3000):])
}

// set stops or resumes the connector: between the two its slot waits.
func (w *connectWorker) set(ctx context.Context, action, state string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.url+"/connectors/outbox/"+action, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if state == "" {
		return nil
	}
	return w.await(ctx, "the connector to be "+state, func() bool {
		res, err := http.Get(w.url + "/connectors/outbox/status")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return strings.Contains(string(body), `"state":"`+state+`"`)
	})
}

func (w *connectWorker) stop() error {
	if w.cmd != nil {
		_ = w.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-w.done:
		case <-time.After(15 * time.Second):
			_ = w.cmd.Process.Kill()
			<-w.done
		}
	}
	return os.RemoveAll(w.dir)
}
