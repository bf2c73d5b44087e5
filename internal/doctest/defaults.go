package doctest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Default is a field of a configuration and what it is when nothing is said.
type Default struct{ Field, Value string }

// Defaults lists the fields of a configuration in which the defaults were
// filled in, in order, those of a struct within it by "Outer.Inner". What can't be
// printed is in named, or "none"; required fields are left out.
func Defaults(cfg reflect.Value, named map[string]string, required ...string) (out []Default) {
	for i := range cfg.NumField() {
		f, v := cfg.Type().Field(i), cfg.Field(i)
		switch value, ok := named[f.Name]; {
		case slices.Contains(required, f.Name):
		case ok:
			out = append(out, Default{f.Name, value})
		case v.Kind() == reflect.Struct:
			for _, inner := range Defaults(v, nil) {
				out = append(out, Default{f.Name + "." + inner.Field, inner.Value})
			}
		case v.Type() == reflect.TypeFor[time.Duration]():
			out = append(out, Default{f.Name, short(time.Duration(v.Int()))})
		case v.Kind() == reflect.String || v.CanInt():
			out = append(out, Default{f.Name, fmt.Sprint(v.Interface())})
		case v.IsZero():
			out = append(out, Default{f.Name, "none"})
		default:
			out = append(out, Default{f.Name, fmt.Sprintf("a %s that has no name", v.Type())})
		}
	}
	return out
}

// short is a duration without the zeros that time.Duration prints.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// CheckDefaults compares the table that a page has behind the line "Of `name`:"
// with want, and says what differs.
func CheckDefaults(page, name string, want []Default) (problems []string) {
	_, rest, found := strings.Cut(page, "\nOf `"+name+"`:\n")
	if !found {
		return []string{"the page has no table of the defaults of " + name}
	}
	got := map[string]string{}
	for line := range strings.Lines(strings.TrimLeft(rest, "\n")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 {
			break // behind the table
		}
		if field, ok := strings.CutPrefix(strings.TrimSpace(cells[1]), "`"); ok {
			got[strings.TrimSuffix(field, "`")] = strings.TrimSpace(cells[2])
		}
	}
	for _, d := range want {
		value, ok := got[d.Field]
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("the table of %s has no %s (default %s)", name, d.Field, d.Value))
		case value != d.Value:
			problems = append(problems, fmt.Sprintf("the table of %s says %s of %s, the code %s", name, value, d.Field, d.Value))
		}
		delete(got, d.Field)
	}
	for field := range got {
		problems = append(problems, fmt.Sprintf("the table of %s has %s, which is no field", name, field))
	}
	slices.Sort(problems)
	return problems
}

// HasLine tells whether the page has this line, whatever its indent.
func HasLine(page, line string) bool {
	for l := range strings.Lines(page) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}
