package migrations

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

var good = os.DirFS("testdata/good")

var schemas atomic.Int64

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is a database of its own, and a schema name that no other test uses,
// since group roles are shared by all databases of the server.
type bundle struct {
	t      *testing.T
	dsn    string
	schema string
	admin  *pgx.Conn
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	b := &bundle{t: t, schema: fmt.Sprintf("mig_%d_%d", os.Getpid(), schemas.Add(1))}
	// Registered first, so run last: when the databases are gone, the roles own
	// nothing any more.
	t.Cleanup(func() {
		config, err := pgx.ParseConfig(b.dsn)
		if err != nil {
			t.Fatal(err)
		}
		config.Database = "postgres"
		conn, err := pgx.ConnectConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, kind := range schema.Kinds() {
			if _, err := conn.Exec(context.Background(), "drop role if exists "+schema.Quote(schema.Role(b.schema, kind))); err != nil {
				t.Error(err)
			}
		}
	})
	b.dsn = pgtest.DSN(t)
	b.admin = dial(t, b.dsn, "", "")
	return b
}

// dial connects as the DSN's user, or as another one.
func dial(t *testing.T, dsn, user, password string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		config.User, config.Password = user, password
	}
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (b *bundle) migrator(files fs.FS, change ...func(*Config)) *Migrator {
	b.t.Helper()
	return b.migratorOn(dial(b.t, b.dsn, "", ""), files, change...)
}

func (b *bundle) migratorOn(conn *pgx.Conn, files fs.FS, change ...func(*Config)) *Migrator {
	b.t.Helper()
	config := Config{Schema: b.schema, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, c := range change {
		c(&config)
	}
	m, err := newMigrator(conn, config, files)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if len(args) == 0 {
		sql = schema.Expand(sql, b.schema)
	}
	if _, err := b.admin.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// one returns the text of a query's only value.
func (b *bundle) one(sql string, args ...any) (value string) {
	b.t.Helper()
	if err := b.admin.QueryRow(context.Background(), schema.Expand(sql, b.schema), args...).Scan(&value); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// until polls a query that answers true or false.
func (b *bundle) until(what, sql string, args ...any) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for b.one("select ("+sql+")::text", args...) != "true" {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// contents is everything in the database that a migration may have changed.
func (b *bundle) contents() string {
	b.t.Helper()
	return b.one(`select concat_ws(E'\n',
		(select string_agg(nspname || ' ' || nspowner::regrole, E'\n' order by nspname) from pg_namespace where nspname !~ '^pg_(toast_)?temp_'),
		(select string_agg(c.oid::regclass::text || ' ' || c.relkind::text || ' ' || coalesce(c.relacl::text, ''), E'\n' order by c.oid) from pg_class c
		 join pg_namespace n on n.oid = relnamespace where nspname !~ '^pg_' and nspname <> 'information_schema'),
		(select string_agg(attrelid::regclass || '.' || attname, E'\n' order by attrelid, attnum) from pg_attribute a join pg_class c on c.oid = attrelid
		 join pg_namespace n on n.oid = relnamespace where nspname = $1 and attnum > 0),
		(select string_agg(rolname, E'\n' order by rolname) from pg_roles where rolname like $1 || '\_%'),
		(select count(*) from pg_auth_members m join pg_roles r on r.oid = m.roleid where rolname like $1 || '\_%'))`, b.schema)
}

func (b *bundle) up(m *Migrator, options UpOptions) []Step {
	b.t.Helper()
	steps, err := m.Up(context.Background(), options)
	if err != nil {
		b.t.Fatal(err)
	}
	return steps
}

func names(steps []Step) string {
	var list []string
	for _, s := range steps {
		list = append(list, s.String())
	}
	return strings.Join(list, ", ")
}

const allUp = "producer/001_init up, producer/002_note up, producer/003_lease up, consumer/001_init up"

func equal(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("error %v\ndoesn't say %q", err, part)
		}
	}
}
