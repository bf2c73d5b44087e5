package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// ScratchDir makes a temporary directory for a server's data. volatile asks for memory (/dev/shm) where the machine
// has two gigabytes of it to spare: several times faster, and gone at a power cut.
//
// When owner is set, the directory belongs to it and lies where it can be reached: a parent closed to others, such as
// a test's own temporary directory, is passed over.
func ScratchDir(name string, volatile bool, owner *supervise.User) (string, error) {
	var bases []string
	if volatile && freeBytes("/dev/shm") > 2<<30 {
		bases = append(bases, "/dev/shm")
	}
	bases = append(bases, os.TempDir(), "/tmp", "/var/tmp")
	var errs []error
	for _, base := range bases {
		if owner != nil && !openToOthers(base) {
			errs = append(errs, fmt.Errorf("%s: closed to user %s", base, owner.Name))
			continue
		}
		dir, err := os.MkdirTemp(base, "fenceline-"+name+"-*")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := giveTo(dir, owner); err != nil {
			_ = os.RemoveAll(dir)
			errs = append(errs, err)
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("devstack: no place for temporary data (set TMPDIR to one): %w", errors.Join(errs...))
}

func giveTo(path string, owner *supervise.User) error {
	if owner == nil {
		return nil
	}
	return os.Chown(path, int(owner.UID), int(owner.GID))
}

// openToOthers tells whether an account that owns nothing on the path can enter dir.
func openToOthers(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}
