//go:build linux || darwin

package devstack

import "golang.org/x/sys/unix"

// freeBytes is the space left for us in the file system that holds path; 0 if that can't be told.
func freeBytes(path string) int64 {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil || unix.Access(path, unix.W_OK) != nil {
		return 0
	}
	return int64(s.Bavail) * int64(s.Bsize) //nolint:unconvert // the types differ between systems
}

// removeSharedMemory removes a System V segment by its id. A server ended by SIGKILL leaves its segment behind; the
// next start on the same data would clean it up, but there is none when the data goes too.
func removeSharedMemory(id int) {
	_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
}
