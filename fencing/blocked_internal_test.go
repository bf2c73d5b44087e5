package fencing

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The lock of a prepared transaction has no backend: that is no pid 0, which nobody
// can end.
func TestAFenceThatAPreparedTransactionKeepsIsBlockedByNoPid(t *testing.T) {
	for detail, want := range map[string]string{
		`{"key": "k", "blocked_by": [null]}`:       "pg_prepared_xacts",
		`{"key": "k", "blocked_by": []}`:           "pg_prepared_xacts",
		`{"key": "k", "blocked_by": [null, 4711]}`: "pid [4711]",
	} {
		err := translate(&pgconn.PgError{Code: "FL010", Detail: detail})
		if !errors.Is(err, ErrBlocked) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "[0") {
			t.Errorf("%s: %v", detail, err)
		}
	}
}
