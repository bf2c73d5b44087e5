package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Postgres is the settings of a command's database.
type Postgres struct {
	DSN    string
	Schema string
	// Flag is the one that DSN comes from, which errors name. Defaults to
	// "-postgres".
	Flag string
}

// Register adds them to a set.
func (p *Postgres) Register(s *Set) {
	s.String(&p.DSN, "postgres", "POSTGRES_DSN", "", "PostgreSQL to use, as URL or key=value pairs", Secret(), Required(), Check(CheckDSN))
	s.String(&p.Schema, "schema", "SCHEMA", schema.Default, "schema that the migrations were applied to", Check(schema.Validate))
}

// Open makes a pool and sees that it reaches the server. Errors name host,
// port and database, never the password.
func (p *Postgres) Open(ctx context.Context, name string) (*pgxpool.Pool, error) {
	flag := cmp.Or(p.Flag, "-postgres")
	cfg, err := pgxpool.ParseConfig(p.DSN)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, CheckDSN(p.DSN))
	}
	if _, ok := cfg.ConnConfig.RuntimeParams["application_name"]; !ok {
		cfg.ConnConfig.RuntimeParams["application_name"] = name
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	// What is committed, and a token that is given, may otherwise be on this server alone
	// without a word, where it waits for a synchronous standby.
	fencing.WatchNotices(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err == nil {
		err = pool.Ping(ctx)
	}
	if err == nil {
		return pool, nil
	}
	if pool != nil {
		pool.Close()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c := cfg.ConnConfig
	cause, remedy := explain(err)
	remedy = strings.ReplaceAll(remedy, "-postgres", flag)
	return nil, &unreachable{fmt.Sprintf("can't use PostgreSQL at %s:%d, database %q, as user %q: %s: %s", c.Host, c.Port, c.Database, c.User, cause, remedy), err}
}

// unreachable has one line for a person, and the driver's error for errors.As.
type unreachable struct {
	text string
	err  error
}

func (e *unreachable) Error() string { return e.text }
func (e *unreachable) Unwrap() error { return e.err }

// explain says in one line what the driver says in several, one for each
// address and each of TLS and none, and what helps against it.
func explain(err error) (cause, remedy string) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "28P01", "28000": // invalid password, invalid authorization
			if strings.Contains(pg.Message, "no encryption") {
				return pg.Message, "the server may want TLS: set sslmode=verify-full in -postgres, or add a line to its pg_hba.conf"
			}
			return pg.Message, "check user and password in -postgres, and the server's pg_hba.conf"
		case "3D000": // unknown database
			return pg.Message, "check the database's name in -postgres, or create it"
		case "53300": // too many connections
			return pg.Message, "end some connections, or raise max_connections"
		case "57P03": // starting up or shutting down
			return pg.Message, "try again in a moment"
		}
		return pg.Message, "check -postgres"
	}
	if cause, remedy := explainTLS(err); cause != "" {
		return cause, remedy
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Error(), "check host and port in -postgres, and that the server is up"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Error(), "check the host in -postgres"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time", "check host and port in -postgres, and what stands between, such as a firewall"
	}
	return strings.ReplaceAll(err.Error(), "\n\t", "; "), "check -postgres, and that the server is up"
}

// explainTLS is explain for what keeps a connection from being encrypted as the
// sslmode wants it; empty if that isn't the cause.
func explainTLS(err error) (cause, remedy string) {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &authority):
		return "the server's certificate is signed by an authority that is not trusted", "name the file with the authority that has signed it with sslrootcert in -postgres"
	case errors.As(err, &host):
		return "the server's certificate is not for its address: " + host.Error(), "reach the server by a name in its certificate, or have the authority alone checked with sslmode=verify-ca"
	case errors.As(err, &invalid):
		return "the server's certificate is refused: " + invalid.Error(), "renew it, or name the authority that has signed it with sslrootcert in -postgres; check this machine's clock"
	case errors.As(err, &alert), errors.As(err, &op) && op.Op == "remote error":
		return "the server refuses the TLS connection: " + strings.ReplaceAll(err.Error(), "\n\t", "; "), "if it wants a client certificate, name one that it trusts with sslcert and sslkey in -postgres"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "the server doesn't speak TLS, and sslmode insists on it", "turn ssl on in the server, or set sslmode=disable in -postgres where nobody can listen on the way"
	}
	return "", ""
}

// NeedsRole adds to an error about a missing right which group roles the command
// needs, all of them; other errors, none, and one that says so already are
// returned as they are.
func NeedsRole(err error, schemaName string, kinds ...string) error {
	if errors.As(err, new(*roleError)) {
		return err
	}
	var pg *pgconn.PgError
	var access *schema.AccessError
	var names []string
	for _, kind := range kinds {
		names = append(names, schema.Quote(schema.Role(schemaName, kind)))
	}
	role, it := strings.Join(names, ", "), "it"
	word := "role"
	if len(kinds) > 1 {
		word, it = "roles", "them"
	}
	if errors.As(err, &access) {
		return &roleError{fmt.Sprintf("user %q may not use schema %q: this command needs the %s %s, so run `grant %s to %s`, or use a login that has %s", access.User, schemaName, word, role, role, schema.Quote(access.User), it), nil}
	}
	if errors.As(err, &pg) && pg.Code == "42501" { // insufficient privilege
		return &roleError{fmt.Sprintf("%v: this command needs the %s %s: grant %s to the login, or use one that has %s", err, word, role, it, it), err}
	}
	return err
}

// roleError says which role is missing; the innermost one knows best.
type roleError struct {
	text string
	err  error
}

func (e *roleError) Error() string { return e.text }
func (e *roleError) Unwrap() error { return e.err }
