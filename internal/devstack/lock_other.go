//go:build !unix

package devstack

import (
	"context"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Lock returns supervise.ErrUnsupported.
func Lock(context.Context, string) (func(), error) { return nil, supervise.ErrUnsupported }
