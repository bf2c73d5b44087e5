// Package supervise runs child processes that never outlive their parent.
//
// A deferred Stop ends a server after a normal return, a panic or Ctrl-C, but not after SIGKILL. A [Guard] covers that
// case: a few lines of /bin/sh run beside the server and read a pipe whose other end only this process holds. The
// kernel closes that end however this process dies; the shell then ends what it was told to watch and removes the
// directory that it was given.
//
// Three details make this free of gaps:
//
//   - A child is started behind a gate: it waits on a second pipe before it executes its program, and the gate opens
//     only after the watchdog knows its process id. If the parent dies in between, the child ends by itself.
//   - Each child, and the watchdog, leads a process group of its own, so a Ctrl-C in the terminal reaches only the
//     parent, which then stops its children in order.
//   - A child that has ended is struck off the watchdog's list at once, so a process id that the system has given to
//     somebody else is never signalled.
package supervise
