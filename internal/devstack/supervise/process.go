package supervise

import (
	"errors"
	"os"
)

// ErrUnsupported reports that this operating system has no Unix processes.
var ErrUnsupported = errors.New("supervise: embedded servers need Linux or macOS; point the program at running servers instead")

// User is the account that a child runs as.
type User struct {
	Name     string
	UID, GID uint32
}

// Spec says what to start.
type Spec struct {
	Path string   // the program
	Args []string // its arguments, without the program's name
	Env  []string // its whole environment
	Dir  string   // its working directory. Defaults to "/"
	User *User    // who it runs as. Defaults to the user of this process

	// Output receives stdout and stderr. Defaults to the null device. It is a file, not a writer, so that nothing
	// in this process has to copy, and a caller waiting for this process's own output isn't held up by the child.
	Output *os.File

	// EndWith is the signal by which the watchdog ends the child's process group when this process has died, by
	// name without SIG. Defaults to "TERM". SIGKILL follows five seconds later.
	EndWith string
}
