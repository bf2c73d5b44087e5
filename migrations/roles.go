package migrations

import (
	"context"
	"fmt"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// groupRole is one of our roles as it is found.
type groupRole struct {
	Name     string
	Exists   bool
	CanLogin bool
	Super    bool
	IsOwner  bool // a member of the owner role, and thereby everything the owner is
}

const inspectRoles = `
select want.name, r.oid is not null, coalesce(r.rolcanlogin, false), coalesce(r.rolsuper, false),
       coalesce(r.oid <> o.oid and pg_catalog.pg_has_role(r.oid, o.oid, 'MEMBER'), false)
from unnest($1::text[]) with ordinality as want(name, nr)
left join pg_catalog.pg_roles r on r.rolname = want.name
left join pg_catalog.pg_roles o on o.rolname = $2::text
order by want.nr`

// ensureRoles creates the group roles that are missing and makes sure that the
// login may become the owner. Roles belong to the cluster, so the advisory
// lock, which belongs to the database, doesn't keep others from doing the same
// elsewhere: losing that race is fine, and the winner's role is inspected like
// any that was there before.
func (m *Migrator) ensureRoles(ctx context.Context, tx pgx.Tx, f found) error {
	var names []string
	for _, kind := range schema.Kinds() {
		names = append(names, m.role(kind))
	}
	missing, err := m.inspectRoles(ctx, tx, names)
	if err != nil {
		return err
	}
	if len(missing) > 0 && !f.createRole {
		grants, err := m.missingGrants(ctx, tx, f)
		if err != nil {
			return err
		}
		return m.privilegeError(f, missing, grants, "has no CREATEROLE, and group roles are missing")
	}
	for _, role := range missing {
		if _, err := roleStatement(ctx, tx, fmt.Sprintf("create role %s nologin", schema.Quote(role))); err != nil {
			return fmt.Errorf("migrations: create role %q: %w", role, err)
		}
	}
	if len(missing) > 0 {
		if again, err := m.inspectRoles(ctx, tx, names); err != nil {
			return err
		} else if len(again) > 0 {
			return fmt.Errorf("migrations: role %q was dropped by someone while it was being created; run this again", again[0])
		}
	}

	grants, err := m.missingGrants(ctx, tx, f)
	if err != nil {
		return err
	}
	for _, user := range grants {
		denied, err := roleStatement(ctx, tx, grant(m.role(schema.KindOwner), user, f.server))
		if denied {
			return m.privilegeError(f, nil, grants, fmt.Sprintf("may not become %q, which owns the schema", m.role(schema.KindOwner)))
		}
		if err != nil {
			return fmt.Errorf("migrations: grant %q to %q: %w", m.role(schema.KindOwner), user, err)
		}
	}
	return nil
}

// inspectRoles refuses roles that would make the group roles pointless, and
// returns those that are missing.
func (m *Migrator) inspectRoles(ctx context.Context, tx pgx.Tx, names []string) (missing []string, err error) {
	owner := m.role(schema.KindOwner)
	rows, err := tx.Query(ctx, inspectRoles, names, owner)
	if err != nil {
		return nil, fmt.Errorf("migrations: look for the group roles: %w", err)
	}
	roles, err := pgx.CollectRows(rows, pgx.RowToStructByPos[groupRole])
	if err != nil {
		return nil, fmt.Errorf("migrations: look for the group roles: %w", err)
	}
	for _, r := range roles {
		switch {
		case !r.Exists:
			missing = append(missing, r.Name)
		case r.Super:
			return nil, &RoleError{r.Name, "is a superuser", fmt.Sprintf("alter role %s nosuperuser", schema.Quote(r.Name))}
		case r.CanLogin:
			return nil, &RoleError{r.Name, "can log in", fmt.Sprintf("alter role %s nologin", schema.Quote(r.Name))}
		case r.IsOwner:
			return nil, &RoleError{r.Name, fmt.Sprintf("is a member of %q", owner), fmt.Sprintf("revoke %s from %s", schema.Quote(owner), schema.Quote(r.Name))}
		}
	}
	return missing, nil
}

// missingGrants returns the users who can't become the owner role yet.
func (m *Migrator) missingGrants(ctx context.Context, tx pgx.Tx, f found) (users []string, err error) {
	privilege := "MEMBER"
	if f.server >= 160000 {
		privilege = "SET"
	}
	for _, user := range f.users() {
		var member bool
		const ask = `
select coalesce((select pg_catalog.pg_has_role($1::name, oid, $3::text) from pg_catalog.pg_roles where rolname = $2::text),
                (select rolsuper from pg_catalog.pg_roles where rolname = $1::text))`
		if err := tx.QueryRow(ctx, ask, user, m.role(schema.KindOwner), privilege).Scan(&member); err != nil {
			return nil, fmt.Errorf("migrations: look at the memberships of %q: %w", user, err)
		}
		if !member {
			users = append(users, user)
		}
	}
	return users, nil
}

// roleStatement runs a statement about roles, whose effect may as well have
// come from someone else in the meantime. It tells being denied apart.
func roleStatement(ctx context.Context, tx pgx.Tx, statement string) (denied bool, err error) {
	for attempt := 1; ; attempt++ {
		err = inSavepoint(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement)
			return err
		})
		switch state := sqlState(err); {
		case state == duplicateObject, state == uniqueViolation:
			return false, nil
		case state == internalError && attempt < 10: // updated by another database's migrator: nothing to wait for
			continue
		case state == insufficientPrivilege:
			return true, err
		}
		return false, err
	}
}
