package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
)

func TestNamesThatNeedQuotingOrBelongToOthersAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", `x";drop`, "x'", "Fenceline", "pg_x", "pg_", "public", "information_schema", "größe", "ſchema", "1a", "a-b", "a b", "a.b", "a\n", "\na", "a\x00",
		"@schema@", strings.Repeat("a", 41),
	} {
		var invalid *schema.InvalidNameError
		if err := schema.Validate(name); !errors.As(err, &invalid) || invalid.Name != name || invalid.Reason == "" {
			t.Errorf("%q: got %v", name, err)
		} else if !strings.Contains(err.Error(), "allowed are") {
			t.Errorf("%q: the error doesn't say what is allowed: %v", name, err)
		}
	}
}

func TestPlainNamesAreAllowedUpToTheLengthThatLeavesRoomForRoles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{schema.Default, "a", "_", "_1", "select", "pgx", "tenant_42", strings.Repeat("a", 40)} {
		if err := schema.Validate(name); err != nil {
			t.Error(err)
		}
		for _, kind := range schema.Kinds() {
			if role := schema.Role(name, kind); len(role) > 63 {
				t.Errorf("PostgreSQL would cut role %s off", role)
			}
		}
	}
}

func TestExpandFillsInEveryPlaceholderAndNothingElse(t *testing.T) {
	t.Parallel()
	got := schema.Expand("@schema@ '@schema_name@' @owner@ @producer@ @advancer@ @relay@ @operator@ @consumer@ @monitor@ @other@ a@b", "s")
	want := `"s" 's' "s_owner" "s_producer" "s_advancer" "s_relay" "s_operator" "s_consumer" "s_monitor" @other@ a@b`
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestExpandWithoutValidatePanicsRatherThanBecomingSQL(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	schema.Expand("'@schema_name@'", "x'; drop table t; --")
}

// FuzzNames holds for every name that is let through: it means the same quoted
// and unquoted, and can't end a literal or an identifier.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"fenceline", `x";drop`, "PG_x", "ſ", "a\x00", "@owner@"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if schema.Validate(name) != nil {
			return
		}
		if schema.Quote(name) != `"`+name+`"` || strings.ToLower(name) != name || strings.ContainsAny(name, "\"'\\;$@-. \x00") || len(name) > 40 {
			t.Fatalf("%q was let through", name)
		}
	})
}
