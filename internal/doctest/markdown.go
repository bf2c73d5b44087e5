package doctest

import (
	"regexp"
	"strings"
)

// Code is a piece of code in a page.
type Code struct {
	Line  int    // of its beginning, from 1
	Lang  string // of a fenced block, else empty
	Block bool   // a block, not a span
	Text  string
}

var span = regexp.MustCompile("`([^`]+)`")

// CodeIn finds the code spans of a page, its fenced blocks, and its indented
// blocks. Indented lines of a list are told from a block by what is before them:
// a block follows an empty line or begins the page.
func CodeIn(page string) []Code {
	var found []Code
	var block *Code
	var fence string
	before := ""
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if trimmed == fence {
				found = append(found, *block)
				block, fence = nil, ""
			} else {
				block.Text += line + "\n"
			}
		case strings.HasPrefix(trimmed, "```"):
			fence = "```"
			block = &Code{Line: i + 2, Lang: strings.TrimPrefix(trimmed, "```"), Block: true}
		case strings.HasPrefix(line, "    ") && trimmed != "" && (block != nil || before == ""):
			if block == nil {
				block = &Code{Line: i + 1, Block: true}
			}
			block.Text += strings.TrimPrefix(line, "    ") + "\n"
		case trimmed == "" && block != nil:
			block.Text += "\n" // it may go on
		default:
			if block != nil {
				found = append(found, *block)
				block = nil
			}
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				found = append(found, Code{Line: i + 1, Text: m[1]})
			}
		}
		before = trimmed
	}
	if block != nil {
		found = append(found, *block)
	}
	return found
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// LinksIn finds where the links of a page lead, within the project only.
func LinksIn(page string) []string {
	var found []string
	for _, m := range link.FindAllStringSubmatch(page, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target != "" && !strings.Contains(target, "://") && !strings.HasPrefix(target, "mailto:") {
			found = append(found, target)
		}
	}
	return found
}
