package pgmigrated

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// Login makes a login that is a member of the group roles of the given kinds
// (of package schema) and of nothing else, and returns the connection string
// with which it comes to the database at dsn, a superuser's. The login is
// dropped after the test, with what it was granted there.
func Login(t testing.TB, dsn string, kinds ...string) string {
	t.Helper()
	ctx := context.Background()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("pgmigrated: the connection string is not a URL")
	}
	name, password := "test_"+strings.ToLower(rand.Text()[:16]), rand.Text()
	quoted := pgx.Identifier{name}.Sanitize()
	exec := func(statements ...string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Errorf("pgmigrated: login: %v", err)
			}
		}
	}
	create := []string{"create role " + quoted + " login password '" + password + "'"}
	for _, kind := range kinds {
		create = append(create, "grant "+schema.Quote(schema.Role(schema.Default, kind))+" to "+quoted)
	}
	exec(create...)
	t.Cleanup(func() { exec("drop owned by "+quoted, "drop role "+quoted) })
	u.User = url.UserPassword(name, password)
	return u.String()
}
