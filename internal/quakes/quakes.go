package quakes

import (
	"bufio"
	"bytes"
	_ "embed" // the input file
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

//go:embed quakes.ndjson
var embedded []byte

// Report is one report of one earthquake.
type Report struct {
	ID        string  `json:"id"`
	Net       string  `json:"net"`
	Updated   int64   `json:"updated"`
	Time      int64   `json:"time"`
	Magnitude float64 `json:"mag"`
	Type      string  `json:"type"`
	Place     string  `json:"place"`

	// Line is the report as it stands in the file.
	Line []byte `json:"-"`
}

// UpdatedAt is when the network last changed the report.
func (r Report) UpdatedAt() time.Time { return time.UnixMilli(r.Updated).UTC() }

// All are the reports of the embedded file.
func All() ([]Report, error) { return Read(bytes.NewReader(embedded)) }

// LineError says which line of an input is not a report, and why.
type LineError struct {
	Line   int
	Reason string
}

// Error implements error.
func (e *LineError) Error() string {
	return fmt.Sprintf("quakes: line %d is not a report: %s: want one JSON object with id, net, updated and mag; take the line out, or mend it", e.Line, e.Reason)
}

// Read reads reports, one JSON object a line. A line that is not one gives a
// [*LineError]: none is passed over.
func Read(r io.Reader) ([]Report, error) {
	var reports []Report
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		report, reason := parse(line)
		if reason == "" && seen[report.ID] != 0 {
			reason = fmt.Sprintf("id %q was on line %d already", report.ID, seen[report.ID])
		}
		if reason != "" {
			return nil, &LineError{n, reason}
		}
		seen[report.ID] = n
		reports = append(reports, report)
	}
	if err := lines.Err(); err != nil {
		return nil, &LineError{n + 1, err.Error()}
	}
	return reports, nil
}

// parse gives the report of a line, or what is wrong with it.
func parse(line []byte) (r Report, reason string) {
	var fields struct {
		ID        *string  `json:"id"`
		Net       *string  `json:"net"`
		Updated   *int64   `json:"updated"`
		Magnitude *float64 `json:"mag"`
	}
	if err := json.Unmarshal(line, &fields); err != nil {
		return r, err.Error()
	}
	switch {
	case fields.ID == nil || *fields.ID == "":
		return r, "it has no id"
	case fields.Net == nil || *fields.Net == "":
		return r, "it has no net"
	case fields.Updated == nil:
		return r, "it has no updated"
	case fields.Magnitude == nil || math.IsNaN(*fields.Magnitude):
		return r, "it has no mag"
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err.Error()
	}
	r.Line = bytes.Clone(line)
	return r, ""
}

// Parse reads one report, such as the payload of an event.
func Parse(line []byte) (Report, error) {
	r, reason := parse(bytes.TrimSpace(line))
	if reason != "" {
		return r, &LineError{1, reason}
	}
	return r, nil
}
