//go:build unix

package devstack

import (
	"os/exec"
	"syscall"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// runAs makes cmd run as owner, in a process group of its own.
func runAs(cmd *exec.Cmd, owner *supervise.User) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.UID, Gid: owner.GID}
	}
}

var (
	fastShutdown      = syscall.SIGINT
	immediateShutdown = syscall.SIGQUIT
)
