package consumer

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// What stands between may send an error without one.
func TestAnErrorWithoutASQLSTATEIsTheStatements(t *testing.T) {
	t.Parallel()
	if passing(fmt.Errorf("a pooler's: %w", &pgconn.PgError{Severity: "ERROR", Message: "no"}), false) {
		t.Error("it counts as one that passes by itself")
	}
}
