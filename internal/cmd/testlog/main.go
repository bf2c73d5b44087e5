package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	allow := flag.String("allow", "^$", "a `pattern`; a test may be skipped if its reason matches")
	flag.Parse()
	pattern, err := regexp.Compile(*allow)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog: -allow:", err)
		os.Exit(2)
	}
	good, err := summarise(os.Stdin, os.Stdout, pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
	}
	if !good || err != nil {
		os.Exit(1)
	}
}

type event struct {
	Action     string
	Package    string
	ImportPath string // of output while a package is built
	Test       string
	Output     string
}

// summarise reports whether all is well.
func summarise(in io.Reader, out io.Writer, allow *regexp.Regexp) (bool, error) {
	var (
		output  = map[[2]string][]string{} // of each test that still runs
		skipped []string
		good    = true
		passed  int
		failed  int
	)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(out, line)
				e = event{}
			}
			key := [2]string{e.Package, e.Test}
			switch {
			case e.Action == "build-output":
				fmt.Fprint(out, e.Output)
			case e.Action == "build-fail":
				good = false
			case e.Action == "output" && e.Test != "":
				output[key] = append(output[key], e.Output)
			case e.Action == "output":
				// Of a package: its closing line, and what no test can be blamed for,
				// such as a panic or a report of the race detector.
				if e.Output != "PASS\n" {
					fmt.Fprint(out, e.Output)
				}
			case e.Action == "fail":
				good = false
				if e.Test != "" {
					failed++
					fmt.Fprint(out, strings.Join(output[key], ""))
				}
				delete(output, key)
			case e.Action == "pass":
				if e.Test != "" {
					passed++
				}
				delete(output, key)
			case e.Action == "skip" && e.Test != "":
				reason := reason(output[key])
				verdict := "skipped"
				if !allow.MatchString(reason) {
					verdict = "SKIPPED AND MUST NOT BE"
					good = false
				}
				skipped = append(skipped, fmt.Sprintf("%s: %s %s: %s", verdict, e.Package, e.Test, reason))
				delete(output, key)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read: %w", err)
		}
	}
	for _, lines := range output { // of tests that never ended
		fmt.Fprint(out, strings.Join(lines, ""))
	}
	for _, line := range skipped {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "tests: %d passed, %d failed, %d skipped\n", passed, failed, len(skipped))
	if passed == 0 {
		return false, fmt.Errorf("no test has passed")
	}
	return good, nil
}

// reason is what a test said before it was skipped, without go test's own lines.
func reason(lines []string) string {
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}
