package devstack

import (
	"fmt"
	"os"
	"os/user"
	"strconv"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// serverUser is the account that PostgreSQL runs as: nil, meaning our own, unless this process is root.
func serverUser() (*supervise.User, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	// By name, since initdb refuses a user id that has no entry in the account database.
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		// Signed first: macOS gives nobody the id -2.
		uid, err := strconv.ParseInt(account.Uid, 10, 64)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseInt(account.Gid, 10, 64)
		if err != nil {
			continue
		}
		return &supervise.User{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("devstack: PostgreSQL refuses to run as root and there is no account postgres, _postgres or nobody: run as another user")
}
