package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Dashboards and alarms are made from this page.
func TestThePageOfTheOperatorAndTheProgramHaveTheSameMetrics(t *testing.T) {
	content, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	m := newMetrics()
	m.seen([]string{"t"})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "fenceline_") {
			have[name] = true
			if !strings.Contains(page, "| `"+name+"` |") {
				t.Errorf("docs/operations.md doesn't explain %s", name)
			}
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(fenceline_\\w+)` \\| [^|]+ \\|").FindAllStringSubmatch(page, -1) {
		if name := row[1]; !have[name] && name != "fenceline_relay" && name != "fenceline_monitor" && name != "fenceline_operator" {
			t.Errorf("docs/operations.md explains %s, which there is not", name)
		}
	}
	// Each alarm has its page, and each page its three parts.
	for _, link := range regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`).FindAllStringSubmatch(page, -1) {
		if !anchors(page)[link[1]] {
			t.Errorf("docs/operations.md has no page #%s", link[1])
		}
	}
	alarms := strings.Split(page, "\n---\n")
	if len(alarms) != 3 {
		t.Fatalf("docs/operations.md has %d parts, want the general ones, the alarms and what is done by hand", len(alarms))
	}
	for _, alarm := range strings.Split(alarms[1], "\n## ")[1:] {
		title, text, _ := strings.Cut(alarm, "\n")
		for _, part := range []string{"**Means.**", "**Look.**", "**Do.**"} {
			if !strings.Contains(text, part) {
				t.Errorf("the page of %q has no %s", title, part)
			}
		}
	}
}

func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		anchor := strings.ToLower(h[1])
		anchor = regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(anchor, "")
		found[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return found
}
