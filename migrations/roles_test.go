package migrations

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

type login struct {
	name string
	conn *pgx.Conn
}

// login creates a user with attributes and connects as it.
func (b *bundle) login(attributes string) login {
	b.t.Helper()
	name := b.schema + "_login"
	b.exec(`create role ` + name + ` login password 'secret' ` + attributes)
	conn := dial(b.t, b.dsn, name, "secret")
	b.t.Cleanup(func() {
		_ = conn.Close(context.Background())
		_, _ = b.admin.Exec(context.Background(), "drop owned by "+name)
		_, _ = b.admin.Exec(context.Background(), "drop role "+name)
	})
	return login{name, conn}
}

func TestALoginWithCreateRoleAndCreateOnTheDatabaseNeedsNothingElse(t *testing.T) {
	b := setup(t)
	l := b.login("createrole")
	b.exec(`do $$ begin execute format('grant create on database %I to ` + l.name + `', current_database()); end $$`)
	m := b.migratorOn(l.conn, good)
	equal(t, names(b.up(m, UpOptions{DryRun: true})), allUp)
	equal(t, names(b.up(m, UpOptions{})), allUp)
	equal(t, b.one(`select string_agg(distinct applied_by, ' ') from @schema@.schema_version`), l.name)
	status, err := m.Status(context.Background())
	if err != nil || status[0].Have != 3 {
		t.Fatal(status, err)
	}
	equal(t, names(b.down(m, DownOptions{Part: Producer})), allDown)
	equal(t, names(b.down(m, DownOptions{Part: Consumer})), "consumer/001_init down")
}

func TestWithoutCreateRoleTheErrorHasTheStatementsThatMakeItWork(t *testing.T) {
	b := setup(t)
	l := b.login("")
	m := b.migratorOn(l.conn, good)
	before := b.contents()
	_, err := m.Up(context.Background(), UpOptions{})
	var privilege *PrivilegeError
	if !errors.As(err, &privilege) {
		t.Fatalf("got %v", err)
	}
	equal(t, b.contents(), before)
	want := []string{}
	for _, kind := range schema.Kinds() {
		want = append(want, `create role "`+schema.Role(b.schema, kind)+`" nologin;`)
	}
	want = append(want, b.one(`select case when current_setting('server_version_num')::int < 160000
		then 'grant @owner@ to "`+l.name+`";' else 'grant @owner@ to "`+l.name+`" with inherit false, set true;' end`),
		`create schema "`+b.schema+`" authorization "`+schema.Role(b.schema, "owner")+`";`)
	equal(t, strings.Join(privilege.Statements, "\n"), strings.Join(want, "\n"))
	contains(t, err, "has no CREATEROLE", want[0], want[8])

	for _, statement := range privilege.Statements {
		b.exec(statement)
	}
	equal(t, names(b.up(m, UpOptions{})), allUp)
}

func TestWhereOnlyMembershipOrTheSchemaIsMissingOnlyThatIsAskedFor(t *testing.T) {
	b := setup(t)
	l := b.login("")
	for _, kind := range schema.Kinds() {
		b.exec(`create role @` + kind + `@`)
	}
	b.exec(`create schema @schema@ authorization @owner@`)
	m := b.migratorOn(l.conn, good)
	_, err := m.Up(context.Background(), UpOptions{})
	var privilege *PrivilegeError
	if !errors.As(err, &privilege) || len(privilege.Statements) != 1 || !strings.HasPrefix(privilege.Statements[0], "grant ") {
		t.Fatalf("got %v", err)
	}
	b.exec(privilege.Statements[0])
	b.exec(`drop schema @schema@`)
	_, err = m.Up(context.Background(), UpOptions{})
	if !errors.As(err, &privilege) || len(privilege.Statements) != 1 || !strings.HasPrefix(privilege.Statements[0], "create schema ") {
		t.Fatalf("got %v", err)
	}
	b.exec(privilege.Statements[0])
	equal(t, names(b.up(m, UpOptions{})), allUp)
}

func TestALoginThatSetsAnotherRoleCanMigrate(t *testing.T) {
	b := setup(t)
	l := b.login("")
	team := b.schema + "_team"
	b.exec(`create role ` + team + ` createrole`)
	t.Cleanup(func() { _, _ = b.admin.Exec(context.Background(), "drop owned by "+team+"; drop role "+team) })
	b.exec(`grant ` + team + ` to ` + l.name)
	b.exec(`do $$ begin execute format('grant create on database %I to ` + team + `', current_database()); end $$`)
	if _, err := l.conn.Exec(context.Background(), "set role "+team); err != nil {
		t.Fatal(err)
	}
	equal(t, names(b.up(b.migratorOn(l.conn, good), UpOptions{})), allUp)
}

func TestARoleThatIsNoGroupRoleIsRefusedWithTheReason(t *testing.T) {
	for kind, c := range map[string]struct{ make, reason, remedy string }{
		"producer": {"create role @producer@ login", "can log in", "alter role @producer@ nologin"},
		"monitor":  {"create role @monitor@ superuser", "is a superuser", "alter role @monitor@ nosuperuser"},
		"relay":    {"create role @owner@; create role @relay@ in role @owner@", "is a member of", "revoke @owner@ from @relay@"},
	} {
		t.Run(kind, func(t *testing.T) {
			b := setup(t)
			b.exec(c.make)
			_, err := b.migrator(good).Up(context.Background(), UpOptions{})
			var role *RoleError
			if !errors.As(err, &role) || role.Role != schema.Role(b.schema, kind) {
				t.Fatalf("got %v", err)
			}
			remedy := schema.Expand(c.remedy, b.schema)
			contains(t, err, c.reason, remedy)
			b.exec(remedy)
			equal(t, names(b.up(b.migrator(good), UpOptions{})), allUp)
		})
	}
}

func TestASchemaOfSomebodyElseIsRefused(t *testing.T) {
	b := setup(t)
	b.exec(`create schema @schema@`)
	_, err := b.migrator(good).Up(context.Background(), UpOptions{})
	var owner *OwnerError
	if !errors.As(err, &owner) {
		t.Fatalf("got %v", err)
	}
	contains(t, err, "alter schema", "choose another schema name")
}

func TestALoginsDefaultsForItsShortQueriesDoNotReachTheMigrations(t *testing.T) {
	b := setup(t)
	l := b.login("superuser")
	b.exec(`alter role ` + l.name + ` set default_transaction_isolation = 'serializable'`)
	b.exec(`alter role ` + l.name + ` set default_transaction_read_only = on`)
	b.exec(`alter role ` + l.name + ` set statement_timeout = '1min'`)
	b.exec(`alter role ` + l.name + ` set timezone = 'Asia/Kathmandu'`)
	b.exec(`alter role ` + l.name + ` set standard_conforming_strings = off`)
	b.exec(`do $$ begin
		if exists (select from pg_settings where name = 'transaction_timeout') then alter role ` + l.name + ` set transaction_timeout = '1min'; end if;
	end $$`)
	m := b.migratorOn(dial(t, b.dsn, l.name, "secret"), with(t, map[string]string{
		"producer/004_look.up.sql": "-- min-library: 1\ncreate table @schema@.look as select pg_catalog.concat_ws(' ', pg_catalog.current_setting('transaction_isolation'),\n" +
			"pg_catalog.current_setting('statement_timeout'), pg_catalog.current_setting('timezone'), current_user,\n" +
			"pg_catalog.current_setting('standard_conforming_strings'), coalesce(pg_catalog.current_setting('transaction_timeout', true), '0')) as seen;\n",
		"producer/004_look.down.sql": "drop table @schema@.look;\n",
	}))
	b.up(m, UpOptions{})
	equal(t, b.one(`select seen from @schema@.look`), "read committed 0 UTC "+schema.Role(b.schema, "owner")+" on 0")
}
