package migrations

import (
	"context"
	"fmt"
	"slices"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// prepare makes sure that roles, schema and schema_version exist, and leaves
// the transaction running as the owner role. It changes nothing where they do.
func (m *Migrator) prepare(ctx context.Context, tx pgx.Tx) error {
	found, err := m.inspect(ctx, tx)
	if err != nil {
		return err
	}
	if found.schema && found.owner != m.role(schema.KindOwner) {
		if err := m.renamed(ctx, tx, found); err != nil {
			return err
		}
		return &OwnerError{Schema: m.config.Schema, Have: found.owner, Want: m.role(schema.KindOwner)}
	}
	if err := m.ensureRoles(ctx, tx, found); err != nil {
		return err
	}
	if !found.schema {
		if !found.mayCreate {
			return m.privilegeError(found, nil, nil, "may not create a schema in this database")
		}
		create := fmt.Sprintf("create schema %s authorization %s", schema.Quote(m.config.Schema), schema.Quote(m.role(schema.KindOwner)))
		if _, err := tx.Exec(ctx, create); err != nil {
			return fmt.Errorf("migrations: create schema %q: %w", m.config.Schema, err)
		}
	}
	if err := m.become(ctx, tx); err != nil {
		return err
	}
	if !found.versions {
		if _, err := tx.Exec(ctx, m.expand(createVersions)); err != nil {
			return fmt.Errorf("migrations: create %q.schema_version: %w", m.config.Schema, err)
		}
	}
	return nil
}

// renamed tells a schema of ours that was renamed, whose owner therefore has
// another name than the one that is looked for, from somebody else's schema.
func (m *Migrator) renamed(ctx context.Context, tx pgx.Tx, f found) error {
	if !f.versions {
		return nil
	}
	var part Part
	var under string
	var have int
	err := tx.QueryRow(ctx, m.expand("select part, schema_name, max(version) from @schema@.schema_version group by part, schema_name limit 1")).Scan(&part, &under, &have)
	if err != nil || under == m.config.Schema {
		return nil // not ours, or not ours to read: the owner is the answer
	}
	return &VersionError{Part: part, Schema: m.config.Schema, Problem: schema.Renamed, Have: have, Want: m.newest(part), Under: under}
}

// become makes the transaction run as the owner role, with the settings it
// began with, whatever a migration has set since.
func (m *Migrator) become(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, settle+"; "+m.expand("set local role @owner@")); err != nil {
		return fmt.Errorf("migrations: become %q: %w", m.role(schema.KindOwner), err)
	}
	return nil
}

// found is what a migrator comes upon.
type found struct {
	schema    bool   // the schema exists
	owner     string // and belongs to
	versions  bool   // schema_version exists
	mayCreate bool   // the login may create schemas in this database

	session, current string // session_user, current_user: the same, but for logins that set a role
	createRole       bool
	server           int // server_version_num
}

func (m *Migrator) inspect(ctx context.Context, tx pgx.Tx) (f found, err error) {
	if err := tx.QueryRow(ctx, inspectSchema, m.config.Schema).Scan(&f.schema, &f.owner, &f.versions, &f.mayCreate); err != nil {
		return f, fmt.Errorf("migrations: look for schema %q: %w", m.config.Schema, err)
	}
	const whoami = `
select session_user::text, current_user::text, rolcreaterole or rolsuper
from pg_catalog.pg_roles where rolname = current_user`
	if err := tx.QueryRow(ctx, whoami).Scan(&f.session, &f.current, &f.createRole); err != nil {
		return f, fmt.Errorf("migrations: look at the current user: %w", err)
	}
	f.server, err = serverVersion(ctx, tx)
	return f, err
}

// users are those who must be able to become the owner: SET ROLE asks about
// the session user, CREATE SCHEMA … AUTHORIZATION about the current one.
func (f found) users() []string { return slices.Compact([]string{f.session, f.current}) }

// grant is the statement that lets user become owner. From PostgreSQL 16 on,
// whoever creates a role may administer it, but not become it, before saying
// so; inheriting the owner's privileges all the time isn't needed.
func grant(owner, user string, server int) string {
	statement := fmt.Sprintf("grant %s to %s", schema.Quote(owner), schema.Quote(user))
	if server >= 160000 {
		statement += " with inherit false, set true"
	}
	return statement
}

// privilegeError lists everything an administrator has to do at once, rather
// than one thing per attempt.
func (m *Migrator) privilegeError(f found, missingRoles, missingGrants []string, missing string) error {
	var statements []string
	for _, role := range missingRoles {
		statements = append(statements, fmt.Sprintf("create role %s nologin;", schema.Quote(role)))
	}
	for _, user := range missingGrants {
		statements = append(statements, grant(m.role(schema.KindOwner), user, f.server)+";")
	}
	if !f.schema && !f.mayCreate {
		statements = append(statements, fmt.Sprintf("create schema %s authorization %s;", schema.Quote(m.config.Schema), schema.Quote(m.role(schema.KindOwner))))
	}
	return &PrivilegeError{User: f.current, Missing: missing, Statements: statements}
}
