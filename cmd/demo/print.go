package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// printer writes the story: on a terminal with colour and a line of progress
// that is written over, elsewhere in plain lines. NO_COLOR is respected.
type printer struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	colour   bool
	pending  bool // a line of progress stands on the terminal
	start    time.Time
}

func newPrinter(w io.Writer) *printer {
	p := &printer{w: w, start: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = true
		p.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return p
}

func (p *printer) paint(code, s string) string {
	if !p.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.pending = false
	}
	fmt.Fprintln(p.w, s)
}

// note is what happens between the scenes.
func (p *printer) note(format string, args ...any) {
	p.line(p.paint("2", fmt.Sprintf(format, args...)))
}

// scene opens a scene; say is its lines: who did what, and what the answer was.
func (p *printer) scene(title string) { p.line("\n" + p.paint("1", title)) }

func (p *printer) say(format string, args ...any) {
	p.line("  " + fmt.Sprintf(format, args...))
}

// answer paints what the system said.
func (p *printer) answer(s string) string { return p.paint("33", s) }

// progress is written over by the next line; it is left out where there is no
// terminal.
func (p *printer) progress(format string, args ...any) {
	if !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "\r\x1b[K%s", p.paint("2", fmt.Sprintf(format, args...)))
	p.pending = true
}

// verdict is the last line.
func (p *printer) verdict(f *facts) {
	if len(f.differ) > 0 {
		p.fail(strings.Join(f.differ, "; "))
		return
	}
	p.line("\n" + p.paint("1;32", "demo: PASS ") + f.line())
}

// fail is the verdict on a story that could not be told. What is more than a
// line, such as statements to run, comes before it, as it is.
func (p *printer) fail(reason string) {
	first, rest, more := strings.Cut(reason, "\n")
	if more {
		p.line("\n" + rest)
	}
	p.line("\n" + p.paint("1;31", "demo: FAIL ") + first)
}
