package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fenceline/fenceline/internal/version"
)

// The exit codes of every command.
const (
	// ExitOK: done; or stopped when asked to, of what runs until then.
	ExitOK = 0
	// ExitFailed: the work could not be done, or was interrupted; the last line says
	// why.
	ExitFailed = 1
	// ExitUsage: the command line or the environment is wrong; nothing was tried.
	ExitUsage = 2
)

// Command is one thing that a program can do.
type Command struct {
	// Name is what is typed behind the program's, such as "run" or "migrate up".
	Name string
	// Summary is one line for the list of commands.
	Summary string
	// Run does it. A UsageError gives ExitUsage, any other error ExitFailed.
	Run func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

// UsageError marks a mistake in the command line or the environment.
type UsageError struct{ Err error }

// Error implements error.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap gives the mistake.
func (e *UsageError) Unwrap() error { return e.Err }

// ErrReported ends a command that has said itself why it failed: it gives
// ExitFailed and prints nothing more.
var ErrReported = errors.New("failed")

// Stopped is what a command returns that runs until it is told to stop, in place
// of err: to be told so while it still starts is no failure.
func Stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Parse is Set.Parse with its error marked as a mistake in the usage.
func Parse(s *Set, args []string, stdout io.Writer) error {
	if err := s.Parse(args, stdout); err != nil {
		return &UsageError{err}
	}
	return nil
}

// Main runs the command that args name and returns the exit code. An interrupt
// or SIGTERM ends the command's context; another one, from patience on behind it,
// ends the process.
func Main(program, summary string, commands []Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	afterPatience(ctx, stop)
	commands = append(commands, Command{"version", "print the version of this build", func(_ context.Context, args []string, stdout, _ io.Writer) error {
		if err := Parse(New(program+" version", "Prints the version of this build."), args, stdout); err != nil {
			return err
		}
		_, err := fmt.Fprintln(stdout, program, version.String())
		return err
	}})
	err := dispatch(ctx, program, summary, commands, args, stdout, stderr)
	var usage *UsageError
	switch {
	case err == nil || errors.Is(err, ErrHelp):
		return ExitOK
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, err)
		return ExitUsage
	case errors.Is(err, ErrReported):
		return ExitFailed
	default:
		// A library's error begins with its package's name, which may be ours.
		why := strings.TrimPrefix(err.Error(), program+": ")
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			why = "interrupted before it was done: " + why
		}
		fmt.Fprintf(stderr, "%s: %s\n", program, why)
		return ExitFailed
	}
}

// patience is how long signals behind the first one are taken for the same wish:
// "timeout" sends its own to the program and then to the group that it is in, and
// the second would end a stop half-way.
const patience = time.Second

// afterPatience stops listening for signals, so that they end the process again.
func afterPatience(ctx context.Context, stop func()) {
	context.AfterFunc(ctx, func() { time.AfterFunc(patience, stop) })
}

func dispatch(ctx context.Context, program, summary string, commands []Command, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		help(program, summary, commands, stderr)
		return &UsageError{fmt.Errorf("%s: a command is missing", program)}
	}
	switch args[0] {
	case "-h", "-help", "--help":
		help(program, summary, commands, stdout)
		return ErrHelp
	case "help":
		if len(args) == 1 {
			help(program, summary, commands, stdout)
			return ErrHelp
		}
		args = append(slices.Clone(args[1:]), "-help")
	case "-version", "--version":
		args = append([]string{"version"}, args[1:]...)
	}
	// The longest name wins: "migrate up" before "migrate".
	var best *Command
	words := 0
	for i, c := range commands {
		if n := matches(c.Name, args); n > words {
			best, words = &commands[i], n
		}
	}
	switch {
	case best != nil:
		return best.Run(ctx, args[words:], stdout, stderr)
	case strings.HasPrefix(args[0], "-"):
		return &UsageError{fmt.Errorf("%s: a command comes first, its flags behind it: \"%s help\" lists the commands", program, program)}
	}
	return &UsageError{fmt.Errorf("%s: unknown command %s: \"%s help\" lists the commands", program, Shown(args[0]), program)}
}

func help(program, summary string, commands []Command, out io.Writer) {
	fmt.Fprintf(out, "%s\n\nUsage:\n  %s <command> [flags]\n\nCommands:\n", summary, program)
	width := 0
	for _, c := range commands {
		width = max(width, len(c.Name))
	}
	for _, c := range commands {
		fmt.Fprintf(out, "  %-*s  %s\n", width, c.Name, c.Summary)
	}
	fmt.Fprintf(out, "\n\"%s <command> -help\" prints a command's flags and environment variables.\n", program)
	fmt.Fprintf(out, "Exit codes: %d done, or stopped when asked to where it runs until then; %d failed or interrupted; %d wrong usage or configuration.\n", ExitOK, ExitFailed, ExitUsage)
}
