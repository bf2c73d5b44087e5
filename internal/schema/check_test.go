package schema_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// migrated is a database with the producer part only.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	m, err := migrations.New(pool, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(context.Background(), migrations.UpOptions{Parts: []migrations.Part{migrations.Producer}}); err != nil {
		t.Fatal(err)
	}
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, err error, problem schema.Problem, have, want int, text ...string) {
	t.Helper()
	var version *schema.VersionError
	if !errors.As(err, &version) || version.Problem != problem || version.Have != have || version.Want != want {
		t.Fatalf("got %v, want %s, have %d, want %d", err, problem, have, want)
	}
	for _, part := range text {
		if !strings.Contains(err.Error(), part) {
			t.Fatalf("error %v\ndoesn't say %q", err, part)
		}
	}
}

func TestCheckAcceptsTheSchemaThisLibraryWasMadeFor(t *testing.T) {
	if err := schema.Check(context.Background(), migrated(t), schema.Default, schema.Producer); err != nil {
		t.Fatal(err)
	}
}

func TestCheckRefusesAMissingSchemaOrPartAndNamesTheCommand(t *testing.T) {
	pool := migrated(t)
	level := schema.Level(schema.Consumer)
	expect(t, schema.Check(context.Background(), pool, schema.Default, schema.Consumer), schema.Missing, 0, level, "consumer", "relay migrate up")
	expect(t, schema.Check(context.Background(), pool, "elsewhere", schema.Producer), schema.Missing, 0, schema.Level(schema.Producer), `"elsewhere"`, "relay migrate up")
	exec(t, pool, "delete from fenceline.schema_version")
	expect(t, schema.Check(context.Background(), pool, schema.Default, schema.Producer), schema.Missing, 0, schema.Level(schema.Producer))
}

func TestCheckRefusesASchemaThatIsOlderThanTheLibraryNeeds(t *testing.T) {
	pool := migrated(t)
	have := schema.Level(schema.Producer)
	schema.SetLevel(t, schema.Producer, have+2)
	expect(t, schema.Check(context.Background(), pool, schema.Default, schema.Producer), schema.SchemaTooOld, have, have+2, "relay migrate up")
}

func TestCheckAcceptsANewerSchemaAsLongAsEveryMigrationAllowsThisLibrary(t *testing.T) {
	pool := migrated(t)
	level := schema.Level(schema.Producer)
	const add = `insert into fenceline.schema_version (part, version, name, checksum, min_library, schema_name)
		select 'producer', max(version) + 1, 'new', 'x', %s, 'fenceline' from fenceline.schema_version where part = 'producer'`
	exec(t, pool, strings.Replace(add, "%s", "1", 1))
	if err := schema.Check(context.Background(), pool, schema.Default, schema.Producer); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, strings.Replace(add, "%s", "max(version)", 1))
	exec(t, pool, strings.Replace(add, "%s", "1", 1)) // a harmless one after it doesn't let the library in again
	expect(t, schema.Check(context.Background(), pool, schema.Default, schema.Producer), schema.LibraryTooOld, level, level+1, "upgrade this program")
}

func TestCheckRefusesARenamedSchema(t *testing.T) {
	pool := migrated(t)
	exec(t, pool, "alter schema fenceline rename to moved")
	expect(t, schema.Check(context.Background(), pool, "moved", schema.Producer), schema.Renamed, schema.Level(schema.Producer), schema.Level(schema.Producer),
		`alter schema "moved" rename to "fenceline"`)
}

func TestCheckTellsATableOfSomebodyElseApart(t *testing.T) {
	pool := pgtest.Pool(t)
	exec(t, pool, "create schema fenceline create table schema_version (n int)")
	err := schema.Check(context.Background(), pool, schema.Default, schema.Producer)
	if err == nil || !strings.Contains(err.Error(), "not fenceline's table") {
		t.Fatalf("got %v", err)
	}
}

func TestCheckRefusesInvalidNamesAndPartsBeforeAnythingIsSent(t *testing.T) {
	var invalid *schema.InvalidNameError
	// A nil Querier would panic if it were used.
	if err := schema.Check(context.Background(), nil, `x";drop`, schema.Producer); !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	if err := schema.Check(context.Background(), nil, schema.Default, "both"); err == nil || !strings.Contains(err.Error(), `unknown part "both"`) {
		t.Fatalf("got %v", err)
	}
}
