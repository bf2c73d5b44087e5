package migrations

import "testing"

func TestOurOwnMigrationsGoUpDownAndUpAgainForALoginThatIsNoSuperuser(t *testing.T) {
	b := setup(t)
	l := b.login("createrole")
	b.exec(`do $$ begin execute format('grant create on database %I to ` + l.name + `', current_database()); end $$`)
	before := b.contents()
	m := b.migratorOn(l.conn, embedded)
	wanted := m.newest(Producer) + m.newest(Consumer)
	if steps := b.up(m, UpOptions{}); len(steps) != wanted {
		t.Fatalf("went up %s", names(steps))
	}
	after := b.contents()
	for _, part := range []Part{Consumer, Producer} {
		b.down(m, DownOptions{Part: part}) // without Force: fresh tables hold no data but their seeds
	}
	// Only the roles and the login's membership are left.
	b.exec(`drop role @owner@, @producer@, @advancer@, @relay@, @operator@, @consumer@, @monitor@`)
	equal(t, b.contents(), before)
	b.up(m, UpOptions{})
	equal(t, b.contents(), after)
}
