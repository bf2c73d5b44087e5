package migrations

import (
	"fmt"
	"io"
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
)

// printBegin is as attempt begins a transaction: no default of the login's reaches
// what is in it.
const printBegin = "\nbegin isolation level read committed, read write;" + settle + ";"

// printHead is what prepare does, for a tool that can't decide: every statement
// is one that may run again. The block grants a role to oneself only where that
// is needed, in the words that the server's version wants.
const printHead = printBegin + `
select pg_catalog.pg_advisory_xact_lock(%[1]d);
do $fenceline$
declare
    kind text;
begin
    foreach kind in array '{owner,producer,advancer,relay,operator,consumer,monitor}'::text[] loop
        if not exists (select from pg_catalog.pg_roles where rolname = '@schema_name@_' || kind) then
            execute pg_catalog.format('create role %%I nologin', '@schema_name@_' || kind);
        end if;
    end loop;
    if not pg_catalog.pg_has_role(session_user, '@schema_name@_owner',
            case when pg_catalog.current_setting('server_version_num')::int < 160000 then 'MEMBER' else 'SET' end) then
        execute 'grant @owner@ to session_user'
            || case when pg_catalog.current_setting('server_version_num')::int < 160000 then '' else ' with inherit false, set true' end;
    end if;
    if not exists (select from pg_catalog.pg_namespace where nspname = '@schema_name@') then
        create schema @schema@ authorization @owner@;
    end if;
end
$fenceline$;
set local role @owner@;
`

// printGuard keeps a script from being run out of order or twice.
const printGuard = `
do $fenceline$
begin
    if (select coalesce(max(version), 0) from @schema@.schema_version where part = '%[1]s') <> %[2]d then
        raise exception 'this script is for the %[1]s part at version %[2]d'
            using hint = 'see select * from @schema_name@.schema_version';
    end if;
end
$fenceline$;
`

// Print writes the SQL of one migration with everything filled in, for review
// or for other tools: a script that has the same effect as Up or Down with this
// one step, in one transaction, schema_version included. It doesn't ask the
// database anything, so two checks are Up's and Down's alone: a printed down
// script destroys data without asking, and rows that a printed up script
// inserts count as data when it is undone.
func (m *Migrator) Print(w io.Writer, part Part, version int, direction Direction) error {
	if _, err := m.parts([]Part{part}); err != nil {
		return err
	}
	if version < 1 || version > m.newest(part) {
		return fmt.Errorf("migrations: there is no %s migration %d, want 1 to %d", part, version, m.newest(part))
	}
	file := m.migrated[part][version-1]
	step := Step{part, version, file.Name, direction}
	var b strings.Builder
	fmt.Fprintf(&b, "-- fenceline, schema %s: %s (SHA-256 of the template: %s)\n", m.config.Schema, step, file.Checksum)
	switch direction {
	case Up:
		fmt.Fprintf(&b, m.expand(printHead), m.lockKey)
		b.WriteString(m.expand(createVersions) + ";\n")
		fmt.Fprintf(&b, m.expand(printGuard), part, version-1)
		b.WriteString("\n" + m.expand(lockFirst(file.up)+strings.TrimSpace(file.up)) + "\n;\n\n") // an empty statement, should the last one lack its semicolon
		fmt.Fprintf(&b, m.expand("insert into @schema@.schema_version (part, version, name, checksum, min_library, schema_name)\n"+
			"values ('%s', %d, '%s', '%s', %d, '%s');\n"), part, version, file.Name, file.Checksum, file.MinLibrary, m.config.Schema)
	case Down:
		fmt.Fprintf(&b, printBegin+"\nselect pg_catalog.pg_advisory_xact_lock(%d);\nset local role %s;\n",
			m.lockKey, schema.Quote(m.role(schema.KindOwner)))
		fmt.Fprintf(&b, m.expand(printGuard), part, version)
		b.WriteString("\n" + m.expand(lockFirst(file.down)+strings.TrimSpace(file.down)) + "\n;\n\n")
		fmt.Fprintf(&b, m.expand("delete from @schema@.schema_version where part = '%s' and version = %d;\n"), part, version)
	default:
		return fmt.Errorf("migrations: unknown direction %q, want %q or %q", direction, Up, Down)
	}
	b.WriteString("commit;\n")
	_, err := io.WriteString(w, b.String())
	return err
}
