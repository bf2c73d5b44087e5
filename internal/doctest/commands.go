package doctest

import (
	"regexp"
	"slices"
	"strings"
)

// Command is a command line that a page shows.
type Command struct {
	Line    int
	Program string   // relay, demo-consumer, demo, make
	Words   []string // subcommands, or make's targets
	Flags   []string // with one dash, without value; for make, variables
	Shown   string
}

// Programs are those whose command lines are looked at.
var Programs = []string{"relay", "demo-consumer", "demo", "make"}

var (
	leadIn  = regexp.MustCompile(`^(\$ +|[A-Z_]+=\S* +|go run (-\S+ +)*\./cmd/|docker compose (exec|run)( +-\S+)* +\S+ +/|\.?/?bin/|/)`)
	comment = regexp.MustCompile(`(^|\s)#.*$`)
	word    = regexp.MustCompile(`^[a-z][a-z-]*(\|[a-z-]+)*$`)
	setting = regexp.MustCompile(`^([A-Z]+)=`)
)

// Commands finds the command lines of ours in a page. Where several are joined
// by && each is one.
func Commands(page string) []Command {
	var found []Command
	for _, code := range CodeIn(page) {
		if code.Lang == "go" {
			continue
		}
		for i, line := range strings.Split(code.Text, "\n") {
			for part := range strings.SplitSeq(comment.ReplaceAllString(line, ""), "&&") {
				if c, ok := command(strings.TrimSpace(part)); ok {
					c.Line = code.Line + i
					found = append(found, c)
				}
			}
		}
	}
	return found
}

func command(line string) (Command, bool) {
	c := Command{Shown: line}
	for leadIn.MatchString(line) {
		line = line[len(leadIn.FindString(line)):]
	}
	words := strings.Fields(line)
	if len(words) == 0 || !slices.Contains(Programs, words[0]) {
		return c, false
	}
	c.Program = words[0]
	for _, w := range words[1:] {
		m := setting.FindStringSubmatch(w)
		switch {
		case c.Program == "make" && m != nil:
			c.Flags = append(c.Flags, m[1])
		case c.Program != "make" && strings.HasPrefix(w, "-") && len(w) > 1:
			name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
			c.Flags = append(c.Flags, "-"+name)
		case len(c.Flags) > 0: // a flag's value, or quoted text of one
		case word.MatchString(w):
			c.Words = append(c.Words, w)
		default: // a placeholder, or a drawing
			return c, true
		}
	}
	return c, true
}

// Spellings are the command lines that alternatives such as up|down stand for.
func (c Command) Spellings() [][]string {
	all := [][]string{{}}
	for _, w := range c.Words {
		var next [][]string
		for _, before := range all {
			for alternative := range strings.SplitSeq(w, "|") {
				next = append(next, append(slices.Clone(before), alternative))
			}
		}
		all = next
	}
	return all
}
