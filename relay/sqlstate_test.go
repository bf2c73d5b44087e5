package relay

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// What stands between may send an error without one.
func TestAnErrorWithoutASQLSTATEEndsNoRelay(t *testing.T) {
	t.Parallel()
	if err := fmt.Errorf("a pooler's: %w", &pgconn.PgError{Severity: "ERROR", Message: "no more connections"}); fatal(err) {
		t.Error("it counts as one that only an operator can mend")
	}
}
