package pgmigrated_test

import (
	"context"
	"os"
	"testing"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachDatabaseIsMigratedAndNobodyElses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	first, second := pgmigrated.Pool(t), pgmigrated.Pool(t)
	if _, err := first.Exec(ctx, "delete from fenceline.schema_version"); err != nil {
		t.Fatal(err)
	}
	for _, part := range []schema.Part{schema.Producer, schema.Consumer} {
		if err := schema.Check(ctx, second, schema.Default, part); err != nil {
			t.Error(err)
		}
	}
}
