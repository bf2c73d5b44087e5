package testmain

import (
	"fmt"
	"os"
	"sync"
)

// Runner is what runs the tests: *testing.M.
type Runner interface{ Run() int }

var (
	mu    sync.Mutex
	stops []func() error
)

// OnExit registers what to do after the last test; the latest registered is done first.
func OnExit(stop func() error) {
	mu.Lock()
	defer mu.Unlock()
	stops = append(stops, stop)
}

// Main runs the tests and then everything registered. It returns the exit code: the tests' own, or 1 if they passed
// and a server didn't end in order.
func Main(m Runner) int { return Wrap(m).Run() }

// Wrap returns a Runner that does what Main does, for packages whose TestMain hands it on, to goleak.VerifyTestMain
// for example.
func Wrap(m Runner) Runner { return wrapped{m} }

type wrapped struct{ Runner }

func (w wrapped) Run() int {
	code := w.Runner.Run()
	mu.Lock()
	defer mu.Unlock()
	for len(stops) > 0 {
		last := len(stops) - 1
		stop := stops[last]
		stops = stops[:last]
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}
