package consumer_test

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgtest"
)

// foreignConn is that to a server whose lc_messages is another language: it
// translates the severity that is shown, and not the one for programs.
type foreignConn struct{ net.Conn }

func (c foreignConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for i := 0; i < n; {
		at := bytes.Index(p[i:n], []byte("SFATAL\x00VFATAL\x00"))
		if at < 0 {
			break
		}
		i += at + copy(p[i+at:], "SFATÁ\x00") // as long as it was
	}
	return n, err
}

// foreign is a pool whose server speaks another language.
func foreign(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return foreignConn{conn}, err
	}
	there, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(there.Close)
	return there
}

func TestALoginThatIsRefusedInAnotherLanguageEndsRunAsWell(t *testing.T) {
	b := newBench(t)
	pool, name := b.login()
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	done := b.runAs(foreign(t, pool), log.source(), b.config(), b.apply("x"))
	b.eventually("it has begun", func() bool { return len(b.applied("")) == 3 })
	b.exec("alter role " + name + " nologin")
	b.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", name)
	pgtest.WaitTrue(t, b.pool, "select not exists (select from pg_stat_activity where usename = $1)", name)
	log.publish(events("t", "a", 4, 5)...)
	b.refused(done, "give the pool the right user and password")
}
