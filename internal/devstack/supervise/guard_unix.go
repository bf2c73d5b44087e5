//go:build unix

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// watchdog ends what it watches when standard input closes without the word "done". Its argument is the directory to
// remove afterwards, or empty.
const watchdog = `trap '' HUP INT TERM
watched=
while read -r verb pid signal; do
	case $verb in
	watch) watched="$watched $pid:$signal" ;;
	gone)
		rest=
		for w in $watched; do [ "${w%%:*}" = "$pid" ] || rest="$rest $w"; done
		watched=$rest ;;
	done) exit 0 ;;
	esac
done
for w in $watched; do kill -s "${w#*:}" -- "-${w%%:*}" 2>/dev/null; done
n=0
while [ $n -lt 50 ]; do
	alive=
	for w in $watched; do kill -s 0 -- "-${w%%:*}" 2>/dev/null && alive=yes; done
	[ -z "$alive" ] && break
	n=$((n + 1))
	sleep 0.1
done
for w in $watched; do kill -s KILL -- "-${w%%:*}" 2>/dev/null; done
[ -z "$1" ] || rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
`

// gate holds a new child until a word arrives on descriptor 3; without one (the parent died) the program never runs.
const gate = `read -r go <&3 || exit 127; exec 3<&-; exec "$@"`

// A Guard ends its children, and removes its directory, when this process dies.
type Guard struct {
	mu   sync.Mutex
	pipe *os.File
	cmd  *exec.Cmd
}

// NewGuard starts a watchdog. removeDir is removed with all its contents if this process dies before Close; an empty
// removeDir removes nothing. Call Close when all children have ended.
func NewGuard(removeDir string) (*Guard, error) {
	r, w, err := os.Pipe() // close-on-exec: no other child can hold the writing end open
	if err != nil {
		return nil, fmt.Errorf("supervise: pipe: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", watchdog, "fenceline-watchdog", removeDir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("supervise: start the watchdog: %w", err)
	}
	return &Guard{pipe: w, cmd: cmd}, nil
}

// Start runs a program under the guard.
func (g *Guard) Start(spec Spec) (*Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("supervise: pipe: %w", err)
	}
	defer func() { _ = r.Close(); _ = w.Close() }()

	cmd := exec.Command("/bin/sh", append([]string{"-c", gate, "sh", spec.Path}, spec.Args...)...)
	cmd.ExtraFiles = []*os.File{r}
	cmd.Env = spec.Env
	if cmd.Env == nil {
		cmd.Env = []string{} // exec would otherwise pass on the environment of this process, secrets included
	}
	cmd.Dir = spec.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if spec.Output != nil {
		cmd.Stdout, cmd.Stderr = spec.Output, spec.Output
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if u := spec.User; u != nil {
		// No supplementary groups: a child of root keeps none of root's.
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("supervise: start %s: %w", spec.Path, err)
	}
	signal := spec.EndWith
	if signal == "" {
		signal = "TERM"
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	told := g.tell("watch %d %s\n", cmd.Process.Pid, signal)
	go func() {
		p.err = cmd.Wait()
		_ = g.tell("gone %d\n", cmd.Process.Pid)
		close(p.done)
	}()
	if told == nil {
		_, told = w.WriteString("go\n")
	}
	if told != nil {
		_ = cmd.Process.Kill()
		<-p.done
		return nil, fmt.Errorf("supervise: open the gate for %s: %w", spec.Path, told)
	}
	return p, nil
}

// Close ends the watchdog and leaves the directory alone. Children still running are no longer guarded.
func (g *Guard) Close() error {
	if err := g.tell("done\n"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.pipe.Close()
	g.pipe = nil
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("supervise: watchdog: %w", err)
	}
	return nil
}

func (g *Guard) tell(format string, args ...any) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return fmt.Errorf("supervise: the guard is closed")
	}
	if _, err := fmt.Fprintf(g.pipe, format, args...); err != nil {
		return fmt.Errorf("supervise: tell the watchdog: %w", err)
	}
	return nil
}
