//go:build !unix

package devstack

import (
	"os"
	"os/exec"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

func runAs(*exec.Cmd, *supervise.User) {}

var fastShutdown, immediateShutdown = os.Interrupt, os.Kill
