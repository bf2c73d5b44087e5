package fencing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

func TestABlockedErrorPromisesNoMoreOfTheTimeoutThanItDoes(t *testing.T) {
	t.Parallel()
	err := error(&fencing.BlockedError{Key: "order-7", PIDs: []int32{4711}})
	for _, part := range []string{`"order-7"`, "4711", "try again", "when it idles", "in one statement", "but not while it goes from statement to statement", "pg_terminate_backend"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error doesn't say %q: %v", part, err)
		}
	}
	if !errors.Is(err, fencing.ErrBlocked) {
		t.Errorf("the error is no ErrBlocked: %v", err)
	}
}
