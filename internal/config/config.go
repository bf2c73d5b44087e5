package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ErrHelp is returned by Parse after it has printed the help that was asked
// for: the command should exit with 0.
var ErrHelp = errors.New("help was asked for")

// Prefix begins the name of each variable.
const Prefix = "FENCELINE_"

// Set is the settings of one command.
type Set struct {
	// Name is the command line up to the flags, such as "relay run".
	Name string
	// Summary is what the command does, for its help.
	Summary string
	// Args describes the arguments behind the flags; empty if there are none.
	Args string

	settings []*setting
	args     []string
}

type setting struct {
	name, env, usage string
	secret, required bool
	isBool           bool
	def              string
	parse            func(string) error

	flagged bool
	value   string
}

// New makes an empty set.
func New(name, summary string) *Set {
	return &Set{Name: name, Summary: summary}
}

// Option changes a setting.
type Option func(*setting)

// Secret keeps the value out of every message and lets it come from a file.
func Secret() Option { return func(s *setting) { s.secret = true } }

// Required refuses an empty value, also in the place of a default.
func Required() Option { return func(s *setting) { s.required = true } }

// Check adds a rule: its error says what is allowed.
func Check(rule func(string) error) Option {
	return func(s *setting) {
		before := s.parse
		s.parse = func(v string) error {
			if v != "" {
				if err := rule(v); err != nil {
					return err
				}
			}
			return before(v)
		}
	}
}

// String adds a text setting. env is the variable's name without its prefix.
func (s *Set) String(p *string, name, env, def, usage string, opts ...Option) {
	s.add(&setting{name: name, env: env, def: def, usage: usage, parse: func(v string) error { *p = v; return nil }}, opts)
}

// List adds a list of texts separated by commas.
func (s *Set) List(p *[]string, name, env, def, usage string, opts ...Option) {
	s.add(&setting{name: name, env: env, def: def, usage: usage, parse: func(v string) error {
		*p = nil
		for e := range strings.SplitSeq(v, ",") {
			if e = strings.TrimSpace(e); e != "" {
				*p = append(*p, e)
			}
		}
		return nil
	}}, opts)
}

// Duration adds a duration from min to max.
func (s *Set) Duration(p *time.Duration, name, env string, def, min, max time.Duration, usage string, opts ...Option) {
	s.add(&setting{name: name, env: env, def: def.String(), usage: usage, parse: func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < min || d > max {
			return fmt.Errorf("want a duration from %v to %v, such as %v", min, max, def)
		}
		*p = d
		return nil
	}}, opts)
}

// Int adds a number from min to max. What is required has no default: 0 would
// be taken for what was not given.
func (s *Set) Int(p *int, name, env string, def, min, max int, usage string, opts ...Option) {
	number(s, p, name, env, def, min, max, usage, opts)
}

// Int64 is Int for numbers that have 64 bits on every machine.
func (s *Set) Int64(p *int64, name, env string, def, min, max int64, usage string, opts ...Option) {
	number(s, p, name, env, def, min, max, usage, opts)
}

func number[N int | int64](s *Set, p *N, name, env string, def, min, max N, usage string, opts []Option) {
	x := &setting{name: name, env: env, def: fmt.Sprint(def), usage: usage, parse: func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < int64(min) || n > int64(max) {
			return fmt.Errorf("want a number from %d to %d", min, max)
		}
		*p = N(n)
		return nil
	}}
	s.add(x, opts)
	if x.required {
		x.def = ""
	}
}

// Bool adds a switch.
func (s *Set) Bool(p *bool, name, env string, usage string, opts ...Option) {
	s.add(&setting{name: name, env: env, def: "false", usage: usage, isBool: true, parse: func(v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("want true or false")
		}
		*p = b
		return nil
	}}, opts)
}

// OneOf is a rule for a setting with few values.
func OneOf(values ...string) func(string) error {
	return func(v string) error {
		for _, w := range values {
			if v == w {
				return nil
			}
		}
		return fmt.Errorf("want one of %s", strings.Join(values, ", "))
	}
}

func (s *Set) add(x *setting, opts []Option) {
	for _, o := range opts {
		o(x)
	}
	s.settings = append(s.settings, x)
}

// Parse reads flags and variables. It prints the help to out and returns
// ErrHelp if it was asked for; any other error lists all that is wrong.
func (s *Set) Parse(args []string, out io.Writer) error {
	problems, err := s.parseFlags(args)
	if err != nil {
		s.Help(out)
		return err
	}
	for _, x := range s.settings {
		if err := x.resolve(); err != nil {
			problems = append(problems, err)
		}
	}
	return problemsOf(s.Name, problems)
}

// problemsOf says of a command all that is wrong with its settings; nil if nothing
// is.
func problemsOf(name string, problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d problem", name, len(problems))
	if len(problems) > 1 {
		b.WriteByte('s')
	}
	b.WriteString(" in the configuration:")
	for _, p := range problems {
		fmt.Fprintf(&b, "\n  - %v", p)
	}
	fmt.Fprintf(&b, "\nrun \"%s -help\" for all settings", name)
	return errors.New(b.String())
}

// parseFlags reads flags as package flag does, one dash or two. It goes on
// behind one that it doesn't know, so that this doesn't hide what else is wrong,
// and repeats no value. The error is ErrHelp or nil.
func (s *Set) parseFlags(args []string) (problems []error, err error) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		dashed, value, hasValue := strings.Cut(word, "=")
		name := strings.TrimPrefix(dashed[1:], "-")
		if name == "h" || name == "help" {
			return nil, ErrHelp
		}
		x := s.lookup(name)
		switch {
		case x == nil:
			problems = append(problems, fmt.Errorf("unknown flag %s%s", Shown(dashed), s.near(name)))
			if !hasValue && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // most likely its value
			}
			continue
		case x.isBool && !hasValue:
			value = "true"
		case hasValue:
		case len(args) == 0:
			problems = append(problems, fmt.Errorf("%s: a value is missing behind it", dashed))
		default:
			value, args = args[0], args[1:]
		}
		x.value, x.flagged = value, true
	}
	s.args = args
	if len(args) > 0 && s.Args == "" {
		problems = append(problems, fmt.Errorf("unexpected argument %s: there are only flags, and a value with spaces needs quotes", Shown(args[0])))
	}
	return problems, nil
}

func (s *Set) lookup(name string) *setting {
	for _, x := range s.settings {
		if x.name == name {
			return x
		}
	}
	return nil
}

// near suggests the flag that was perhaps meant.
func (s *Set) near(name string) string {
	for _, x := range s.settings {
		a, b := strings.ReplaceAll(x.name, "-", ""), strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
		if b != "" && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
			return ": is -" + x.name + " meant?"
		}
	}
	return ""
}

// Shown quotes a word of the command line for a message, unless it could hold a
// secret: people put connection strings in the wrong place.
func Shown(arg string) string {
	if strings.ContainsAny(arg, "=@") || strings.Contains(arg, "://") {
		return "(not shown, since it may hold a secret)"
	}
	return strconv.Quote(arg)
}

// Typed is a word as a shell takes it, for commands that a message shows: as it
// is where nothing in it means anything to one, else in single quotes.
func Typed(word string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-./:,+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Given says whether a setting was given on the command line.
func (s *Set) Given(name string) bool {
	x := s.lookup(name)
	return x != nil && x.flagged
}

// Arguments are the arguments behind the flags.
func (s *Set) Arguments() []string { return s.args }

func (x *setting) resolve() error {
	v, from := x.def, ""
	switch {
	case x.flagged:
		v, from = x.value, "-"+x.name
	case x.env == "":
	case os.Getenv(Prefix+x.env) != "":
		v, from = os.Getenv(Prefix+x.env), Prefix+x.env
	case x.secret && os.Getenv(Prefix+x.env+"_FILE") != "":
		from = Prefix + x.env + "_FILE"
		b, err := os.ReadFile(os.Getenv(from))
		if err != nil {
			return fmt.Errorf("%s: %w: it must name a readable file with the value", from, err)
		}
		v = strings.TrimRight(string(b), "\r\n")
		if v == "" {
			return fmt.Errorf("%s: the file %s is empty: write the value into it", from, os.Getenv(from))
		}
	}
	if v == "" && x.required {
		set := "set -" + x.name
		if x.env != "" {
			set += " or " + Prefix + x.env
		}
		if x.secret {
			set += " or " + Prefix + x.env + "_FILE"
		}
		return fmt.Errorf("-%s is missing (%s): %s", x.name, x.usage, set)
	}
	if err := x.parse(v); err != nil {
		if x.secret {
			return fmt.Errorf("%s: %w", from, err)
		}
		return refused(from, v, err)
	}
	return nil
}

// refused says that a rule refuses a value. One that could be somebody's secret in
// the wrong place is not repeated, neither as a whole nor by what the rule says.
func refused(from, v string, err error) error {
	shown := Shown(v)
	if shown == strconv.Quote(v) {
		return fmt.Errorf("%s: %s: %w", from, shown, err)
	}
	said := quoted.ReplaceAllStringFunc(err.Error(), func(q string) string {
		if word, err := strconv.Unquote(q); err == nil && strings.Contains(v, word) {
			return shown
		}
		return q
	})
	return fmt.Errorf("%s: %s: %s", from, shown, said)
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Help prints what the command does and every setting.
func (s *Set) Help(out io.Writer) {
	fmt.Fprintf(out, "%s\n\nUsage:\n  %s [flags]%s\n", s.Summary, s.Name, s.Args)
	if len(s.settings) == 0 {
		return
	}
	fmt.Fprint(out, "\nFlags, each with its environment variable (the flag wins):\n")
	for _, x := range s.settings {
		env := ""
		if x.env != "" {
			env = "  " + Prefix + x.env
			if x.secret {
				env += ", " + Prefix + x.env + "_FILE"
			}
		}
		fmt.Fprintf(out, "  -%s%s\n        %s.", x.name, env, x.usage)
		switch {
		case x.required && x.def == "":
			fmt.Fprint(out, " Required.")
		case x.def != "" && x.def != "false":
			fmt.Fprintf(out, " Defaults to %s.", x.def)
		}
		fmt.Fprintln(out)
	}
}
