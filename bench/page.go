package main

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// howToRead is the part of the page that a person has written.
//
//go:embed reading.md
var howToRead string

// markdown is the page.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString("# Measured against the field\n\n")
	fmt.Fprintf(&b, "Written by a program from one run, `%s`; `make bench-page` writes it again from that run's `results.json`. What is compared, how, and each peer's configuration: [bench/README.md](../bench/README.md). What bounds the figures: [performance.md](performance.md).\n\n", r.Command)
	if r.Size != "full" {
		fmt.Fprintf(&b, "**A %s run: a first look, and no result.** Few rounds, short slices.\n\n", r.Size)
	}
	fmt.Fprintf(&b, "| | |\n| --- | --- |\n| when | %s, for %s |\n| machine | %s; clients, PostgreSQL and Kafka share it |\n| servers | PostgreSQL %s, Apache Kafka %s |\n| PostgreSQL's settings | %s; fsync, full_page_writes and synchronous_commit on |\n| peers | %s |\n\n",
		r.Time.Format(time.DateTime)+" UTC", r.Took, r.Machine, r.Postgres, r.Kafka, pairs(r.Settings, " = "), pairs(r.Peers, " "))
	b.WriteString("Figures are medians over the rounds, with the smallest and the largest in parentheses where there was more than one round. A ratio is between two arms of the same round. ~~Struck out~~ is the speed of an arm whose output is wrong.\n\n")
	if s := r.summary(); s != "" {
		b.WriteString("## At a glance\n\n" + s + "\n")
	}
	b.WriteString(strings.TrimSpace(howToRead) + "\n")
	for _, f := range r.Sections {
		b.WriteString("\n" + f.markdown())
	}
	for _, id := range slices.Sorted(maps.Keys(r.Failed)) {
		fmt.Fprintf(&b, "\n## %s\n\nThis section could not be measured: %s.\n", id, oneLine(r.Failed[id]))
	}
	return b.String()
}

func pairs(m map[string]string, between string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+between+m[k])
	}
	return strings.Join(all, ", ")
}

// oneLine makes an error fit into a table.
func oneLine(s string) string {
	return fmt.Sprintf("%.160s", strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|"))
}

// markdown is a section: what was done, the plots, the table, the arms.
func (f *figures) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s %s; load average %s.\n\n", f.Title, f.Text, roundsText(f.Rounds), strings.Join(f.Loads, ", "))
	if f.Bars != "" {
		fmt.Fprintf(&b, "![%s](%s/%s.svg)\n\n", f.Title, plotFolder, f.ID)
	}
	if f.Curves != nil && len(f.Curves.Lines) > 0 {
		fmt.Fprintf(&b, "![%s: %s](%s/%s-curves.svg)\n\n", f.Title, f.Curves.Y, plotFolder, f.ID)
	}
	checked := slices.ContainsFunc(f.Arms, func(a *armFigure) bool { return a.Verdict != nil })
	b.WriteString("| |")
	for _, c := range f.Columns {
		b.WriteString(" " + c.Title + " |")
	}
	columns := len(f.Columns)
	if checked {
		b.WriteString(" lost, inverted, copies |")
		columns++
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", columns) + "\n")
	for _, a := range f.Arms {
		if a.Error != "" {
			fmt.Fprintf(&b, "| %s | did not run: %s |%s\n", a.Name, oneLine(a.Error), strings.Repeat(" |", columns-1))
			continue
		}
		strike := ""
		if a.Verdict != nil && !a.Verdict.ok() {
			strike = "~~"
		}
		fmt.Fprintf(&b, "| %s |", a.Name)
		for _, c := range f.Columns {
			v, ok := a.Figures[c.Key]
			if !ok {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %s%s%s |", strike, c.text(v), strike)
		}
		if v := a.Verdict; v != nil {
			fmt.Fprintf(&b, " %d, %d, %d |", v.Lost, v.Inverted, v.Copies)
		} else if checked {
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, a := range f.Arms {
		fmt.Fprintf(&b, "- **%s**: %s.\n", a.Name, a.Note)
	}
	return b.String()
}

func roundsText(n int) string {
	if n == 1 {
		return "One round"
	}
	return fmt.Sprintf("%d rounds", n)
}

// text is a figure as the page shows it.
func (c column) text(s spread) string {
	if c.Brief || len(s.All) < 2 {
		return fmt.Sprintf("%.*f", c.Digits, s.Median)
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", c.Digits, s.Median, c.Digits, s.Min, c.Digits, s.Max)
}
