package config

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const password = "pl4nted-passw0rd"

func TestABadConnectionStringIsRefusedWithoutBeingRepeated(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.pem")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dsn   string
		wants []string
	}{
		"port":               {"postgres://u:" + password + "@h:port/d", []string{"port: want a number", "percent-encoded"}},
		"port as a key":      {"host=h port=abc password=" + password, []string{"port: want a number"}},
		"ports":              {"host=a,b port=1,2,3 password=" + password, []string{"port: want one, or one for each host"}},
		"password as a port": {"postgres://h:" + password + "/d", []string{"port: want a number"}},
		"percent":            {"postgres://u:" + password + "%zz@h/d", []string{"want postgres://user@host:5432/database"}},
		"key=value":          {"host=h password='" + password, []string{"want postgres://user@host:5432/database"}},
		"sslmode":            {"postgres://u:" + password + "@h/d?sslmode=perhaps", []string{"sslmode: want one of", "verify-full"}},
		"sslcertmode":        {"postgres://u:" + password + "@h/d?sslcertmode=perhaps", []string{"sslcertmode: want one of"}},
		"authority":          {"host=h sslmode=verify-full sslrootcert=/nothing/here password=" + password, []string{"sslrootcert: /nothing/here: no such file", "readable"}},
		"no authority":       {"host=h sslmode=verify-full sslrootcert=" + text + " password=" + password, []string{"sslrootcert: ", "no certificate in PEM"}},
		"certificate":        {"host=h sslmode=require sslcert=/nothing/here sslkey=" + text + " password=" + password, []string{"sslkey: ", "PEM"}},
		"key":                {"host=h sslmode=require sslcert=" + text + " sslkey=/nothing/there password=" + password, []string{"sslkey: /nothing/there: no such file"}},
		"no key":             {"host=h sslmode=require sslcert=" + text + " password=" + password, []string{"sslcert, sslkey: set both"}},
		"service":            {"service=nosuch servicefile=" + text + " password=" + password, []string{"service"}},
		"service file":       {"service=nosuch servicefile=/nothing/here password=" + password, []string{"servicefile: it must name a readable service file"}},
		"attributes":         {"host=h target_session_attrs=" + password, []string{"target_session_attrs: want one of"}},
		"pool setting":       {"postgres://u:" + password + "@h/d?pool_max_conns=" + password, []string{"pool_max_conns: want a number"}},
		"timeout":            {"host=h connect_timeout=" + password, []string{"connect_timeout: want a number of seconds"}},
		"just the word":      {password, []string{"want postgres://user@host:5432/database"}},
	} {
		dsn := c.dsn
		t.Run(name, func(t *testing.T) {
			for _, how := range []string{"flag", "variable"} {
				var p Postgres
				s := New("x", "X.")
				p.Register(s)
				args := []string{"-postgres", dsn}
				if how == "variable" {
					args = nil
					t.Setenv("FENCELINE_POSTGRES_DSN", dsn)
				}
				err := s.Parse(args, nil)
				if err == nil {
					t.Fatal("it was accepted")
				}
				if strings.Contains(err.Error(), password) {
					t.Errorf("the password is in: %v", err)
				}
				for _, want := range c.wants {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("no %q in: %v", want, err)
					}
				}
			}
			if _, err := (&Postgres{DSN: dsn}).Open(t.Context(), "test"); err == nil || strings.Contains(err.Error(), password) {
				t.Errorf("error of Open is %v", err)
			}
		})
	}
}

func TestAFailingConnectionIsOneLineWithTheRemedyAndWithoutThePassword(t *testing.T) {
	server, err := url.Parse(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	real, _ := server.User.Password()
	at := func(host, path string) string {
		u := *server
		u.User, u.Host, u.Path = url.UserPassword("postgres", password), host, path
		return u.String()
	}
	closed, silent := listener(t, true), listener(t, false)
	encrypted, authority := encrypting(t)
	right := *server
	right.Path = "/nothing_here"
	for name, c := range map[string]struct{ dsn, want string }{
		"refused":               {at(closed, "/d"), "check host and port in -postgres, and that the server is up"},
		"silent":                {at(silent, "/d") + "&connect_timeout=1", "check host and port"},
		"no TLS":                {strings.Replace(at(server.Host, "/d"), "sslmode=disable", "sslmode=require", 1), "set sslmode=disable in -postgres"},
		"authority of nobody's": {strings.Replace(at(encrypted, "/d"), "sslmode=disable", "sslmode=verify-full", 1), "an authority that is not trusted: name the file with the authority that has signed it with sslrootcert"},
		"another name":          {strings.Replace(at(strings.Replace(encrypted, "127.0.0.1", "localhost", 1), "/d"), "sslmode=disable", "sslmode=verify-full&sslrootcert="+authority, 1), "reach the server by a name in its certificate"},
		"several":               {"host=127.0.0.1,127.0.0.1 port=1,2 user=u password=" + password, "check host and port"},
		"password":              {at(server.Host, "/postgres"), "check user and password in -postgres"},
		"database":              {right.String(), "check the database's name in -postgres, or create it"},
	} {
		t.Run(name, func(t *testing.T) {
			pool, err := (&Postgres{DSN: c.dsn}).Open(t.Context(), "test")
			if err == nil {
				pool.Close()
				t.Fatal("it was opened")
			}
			for e := err; e != nil; e = errors.Unwrap(e) { // also what a log with %+v of the cause would show
				if strings.Contains(e.Error(), password) || strings.Contains(e.Error(), real) {
					t.Errorf("a password is in %v", e)
				}
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// listener is an address at which nobody listens, or nobody answers.
func listener(t *testing.T, closed bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if closed {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestAnInterruptedOpenIsTheInterruptNotAnUnreachableServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Postgres{DSN: pgtest.DSN(t)}).Open(ctx, "test"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestOnlyAMissingRightIsBlamedOnTheRole(t *testing.T) {
	err := NeedsRole(&pgconn.PgError{Code: "42501", Message: "permission denied for table x"}, "fenceline", "relay")
	if !strings.Contains(err.Error(), `needs the role "fenceline_relay": grant it`) {
		t.Errorf("error is %v", err)
	}
	other := &pgconn.PgError{Code: "57014"}
	if err := NeedsRole(other, "fenceline", "relay"); !errors.Is(err, other) || err.Error() != other.Error() {
		t.Errorf("error is %v", err)
	}
	if again := NeedsRole(fmt.Errorf("read: %w", err), "fenceline", "monitor"); again.Error() != "read: "+err.Error() {
		t.Errorf("who asked first knows which role it needs, and is contradicted: %v", again)
	}
	if err := NeedsRole(nil, "fenceline", "relay"); err != nil {
		t.Errorf("error is %v", err)
	}
}

func TestOneReachableBrokerIsEnoughAndNoneNamesAll(t *testing.T) {
	closed, open := listener(t, true), listener(t, false)
	if err := (&Kafka{Brokers: []string{closed, open}}).Reach(t.Context()); err != nil {
		t.Error(err)
	}
	err := (&Kafka{Brokers: []string{closed, closed}}).Reach(t.Context())
	if err == nil || !strings.Contains(err.Error(), closed+","+closed) || !strings.Contains(err.Error(), "check -kafka") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if err := (&Kafka{Brokers: []string{closed}}).Reach(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}

// encrypting is a server that takes TLS and no more, with a certificate for
// 127.0.0.1, and the file with its authority.
func encrypting(t *testing.T) (addr, authority string) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	authority = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() //nolint:errcheck // a test's
				var request [8]byte
				if _, err := io.ReadFull(c, request[:]); err != nil {
					return
				}
				if _, err := c.Write([]byte{'S'}); err != nil {
					return
				}
				_ = tls.Server(c, &tls.Config{Certificates: web.TLS.Certificates}).Handshake() // the client ends it
			}()
		}
	}()
	return l.Addr().String(), authority
}
