package fencingtest

import (
	"context"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/schema"
)

// Database runs a statement; a pgx connection, pool and transaction do.
type Database interface {
	// Exec runs sql with its arguments.
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Expire ends the lease of a key in the database, as if its time were over; its
// holder is not told. db must be the schema's owner or a superuser. The test
// fails if nobody has the lease.
func Expire(t testing.TB, db Database, schemaName, key string) {
	t.Helper()
	if err := schema.Validate(schemaName); err != nil {
		t.Fatalf("fencingtest: %v", err)
	}
	tag, err := db.Exec(context.Background(), schema.Expand("update @schema@.lease set expires_at = clock_timestamp() - interval '1 s' where key = $1 and expires_at > clock_timestamp()", schemaName), key)
	if err != nil {
		t.Fatalf("fencingtest: expire the lease of %q: %v", key, err)
	}
	if tag.RowsAffected() == 0 {
		t.Fatalf("fencingtest: nobody has the lease of %q", key)
	}
}

// Link is a connection to the database that can lose answers.
type Link struct{ proxy *pgproxy.Proxy }

// Lossy stands in front of the database at dsn, a URL, and returns the
// connection string of that place. It is gone after the test. Encryption is
// refused, since answers could not be told apart: sslmode must allow that.
func Lossy(t testing.TB, dsn string) (lossy string, link *Link) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		t.Fatal("fencingtest: the connection string is not a URL with a host") // it may hold a password
	}
	proxy, err := pgproxy.Listen(address(u))
	if err != nil {
		t.Fatalf("fencingtest: %v", err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	lossy, err = proxy.DSN(dsn)
	if err != nil {
		t.Fatalf("fencingtest: %v", err)
	}
	return lossy, &Link{proxy}
}

// address is where the server listens: a connection string need not say the port.
func address(u *url.URL) string {
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "5432")
	}
	return u.Host
}

// LoseAnswer loses the answer to the next COMMIT of a transaction in which
// something contains marker (a step or a key, say; empty for any), and cuts its
// connection. It has committed by then; the channel is closed.
func (l *Link) LoseAnswer(marker string) <-chan struct{} { return l.proxy.DropNextCommitAnswer(marker) }

// Freeze stops all traffic without closing a connection, until Thaw.
func (l *Link) Freeze() { l.proxy.Freeze() }

// Thaw lets it flow again.
func (l *Link) Thaw() { l.proxy.Thaw() }
