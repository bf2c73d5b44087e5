package config

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// example has a setting of each kind.
type example struct {
	text, secret, kept string
	list               []string
	wait               time.Duration
	n                  int
	on                 bool
}

func (e *example) set() *Set {
	s := New("example run", "Shows.")
	s.String(&e.text, "text", "TEXT", "default", "a text")
	s.String(&e.secret, "secret", "SECRET", "", "a secret", Secret(), Required(), Check(func(v string) error {
		if strings.HasPrefix(v, "bad") {
			return errors.New("want another one")
		}
		return nil
	}))
	s.String(&e.kept, "kept", "KEPT", "default", "a secret with a default", Secret())
	s.List(&e.list, "list", "LIST", "a,b", "some texts")
	s.Duration(&e.wait, "wait", "WAIT", time.Second, time.Second, time.Minute, "a time")
	s.Int(&e.n, "count", "COUNT", 1, 1, 9, "a number")
	s.Bool(&e.on, "on", "ON", "a switch")
	return s
}

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAFlagWinsOverTheVariableTheVariableOverTheFileTheFileOverTheDefault(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		env  map[string]string // _FILE: the content
		want string
	}{
		"flag":               {[]string{"-kept", "of the flag"}, map[string]string{"KEPT": "of the variable", "KEPT_FILE": "of the file"}, "of the flag"},
		"variable":           {nil, map[string]string{"KEPT": "of the variable", "KEPT_FILE": "of the file"}, "of the variable"},
		"file":               {nil, map[string]string{"KEPT_FILE": "of the file\r\n"}, "of the file"},
		"file, inner spaces": {nil, map[string]string{"KEPT_FILE": " of the file \n"}, " of the file "},
		"default":            {nil, nil, "default"},
		"empty variable":     {nil, map[string]string{"KEPT": ""}, "default"},
		"empty flag":         {[]string{"-kept="}, map[string]string{"KEPT": "of the variable"}, ""},
		"two dashes":         {[]string{"--kept=of the flag"}, nil, "of the flag"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				if strings.HasSuffix(k, "_FILE") {
					v = file(t, v)
				}
				t.Setenv(Prefix+k, v)
			}
			var e example
			if err := e.set().Parse(append(c.args, "-secret", "x"), io.Discard); err != nil {
				t.Fatal(err)
			}
			if e.kept != c.want {
				t.Errorf("got %q, want %q", e.kept, c.want)
			}
		})
	}
}

func TestEachKindOfSettingIsReadFromFlagAndVariable(t *testing.T) {
	check := func(e example) {
		t.Helper()
		if e.text != "t" || !slices.Equal(e.list, []string{"x", "y"}) || e.wait != 30*time.Second || e.n != 7 || !e.on {
			t.Errorf("got %+v", e)
		}
	}
	var e example
	if err := e.set().Parse(strings.Fields("-secret s -text t -list x,,y, -wait 30s -count 7 -on"), io.Discard); err != nil {
		t.Fatal(err)
	}
	check(e)
	for k, v := range map[string]string{"SECRET": "s", "TEXT": "t", "LIST": " x , y", "WAIT": "30s", "COUNT": "7", "ON": "true"} {
		t.Setenv(Prefix+k, v)
	}
	e = example{}
	if err := e.set().Parse(nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	check(e)
}

func TestOnlyASecretCanComeFromAFile(t *testing.T) {
	t.Setenv(Prefix+"TEXT_FILE", file(t, "of the file"))
	var e example
	if err := e.set().Parse([]string{"-secret", "s"}, io.Discard); err != nil || e.text != "default" {
		t.Errorf("text %q, %v", e.text, err)
	}
}

func TestAllThatIsWrongIsSaidAtOnceEachWithTheRemedy(t *testing.T) {
	t.Setenv(Prefix+"WAIT", "90s")
	t.Setenv(Prefix+"KEPT_FILE", filepath.Join(t.TempDir(), "missing"))
	var e example
	err := e.set().Parse([]string{"-nope", "5", "-count", "x", "-on=perhaps", "-texts=y", "rest"}, io.Discard)
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{
		"example run: 8 problems",
		`unknown flag "-nope"`,
		`unknown flag "-texts": is -text meant?`,
		`unexpected argument "rest"`,
		"-secret is missing (a secret): set -secret or FENCELINE_SECRET or FENCELINE_SECRET_FILE",
		"FENCELINE_KEPT_FILE", "it must name a readable file",
		`FENCELINE_WAIT: "90s": want a duration from 1s to 1m0s, such as 1s`,
		`-count: "x": want a number from 1 to 9`,
		`-on: "perhaps": want true or false`,
		`run "example run -help" for all settings`,
	} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("no %q in\n%v", text, err)
		}
	}
}

func TestASecretIsInNoMessage(t *testing.T) {
	const planted = "s3cr3t-value"
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
	}{
		"refused by its rule, flag":     {[]string{"-secret", "bad" + planted}, nil},
		"refused by its rule, variable": {nil, map[string]string{"SECRET": "bad" + planted}},
		"refused by its rule, file":     {nil, map[string]string{"SECRET_FILE": "bad" + planted}},
		"behind a flag misspelt":        {[]string{"-secrets=" + planted}, nil},
		"behind a flag misspelt, two":   {[]string{"-secrets", planted}, nil},
		"three dashes":                  {[]string{"---secret=" + planted}, nil},
		"no name":                       {[]string{"-=" + planted}, nil},
		"as an argument":                {[]string{"password=" + planted}, nil},
		"as an argument, URL":           {[]string{"postgres://u:" + planted + "@h/d"}, nil},
		"behind another flag":           {[]string{"-count", "postgres://u:" + planted + "@h/d"}, nil},
		"in another variable":           {nil, map[string]string{"WAIT": "host=h password=" + planted}},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				if strings.HasSuffix(k, "_FILE") {
					v = file(t, v)
				}
				t.Setenv(Prefix+k, v)
			}
			var e example
			err := e.set().Parse(c.args, io.Discard)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), planted) {
				t.Errorf("it is in %v", err)
			}
		})
	}
	t.Run("empty file", func(t *testing.T) {
		t.Setenv(Prefix+"SECRET_FILE", file(t, "\n"))
		var e example
		if err := e.set().Parse(nil, io.Discard); err == nil || !strings.Contains(err.Error(), "is empty: write the value into it") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestHelpListsEverySettingWithVariableAndDefault(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"-help"}, {"--help"}, {"-nope", "-h"}} {
		var out strings.Builder
		var e example
		if err := e.set().Parse(args, &out); !errors.Is(err, ErrHelp) {
			t.Fatalf("%v: %v", args, err)
		}
		for _, text := range []string{
			"Shows.", "example run [flags]",
			"-text  FENCELINE_TEXT\n", "Defaults to default.",
			"-secret  FENCELINE_SECRET, FENCELINE_SECRET_FILE\n", "a secret. Required.",
			"-list  FENCELINE_LIST\n", "Defaults to a,b.",
			"-wait  FENCELINE_WAIT\n", "Defaults to 1s.",
			"-count  FENCELINE_COUNT\n", "Defaults to 1.",
			"-on  FENCELINE_ON\n",
		} {
			if !strings.Contains(out.String(), text) {
				t.Errorf("no %q in\n%s", text, out.String())
			}
		}
	}
}

func TestTheEndOfACommandBecomesItsExitCode(t *testing.T) {
	commands := func(err error) []Command {
		return []Command{
			{Name: "do", Summary: "do it", Run: func(_ context.Context, args []string, out, _ io.Writer) error {
				if err != nil {
					return err
				}
				return Parse(New("p do", "Does."), args, out)
			}},
			{Name: "do more", Summary: "do more", Run: func(context.Context, []string, io.Writer, io.Writer) error { return ErrReported }},
		}
	}
	for name, c := range map[string]struct {
		args   string
		err    error
		code   int
		stderr string
	}{
		"done":                  {"do", nil, ExitOK, ""},
		"help":                  {"do -h", nil, ExitOK, ""},
		"help of a command":     {"help do", nil, ExitOK, ""},
		"failed":                {"do", errors.New("no luck"), ExitFailed, "p: no luck\n"},
		"named already":         {"do", errors.New("p: no luck"), ExitFailed, "p: no luck\n"},
		"said already":          {"do more", nil, ExitFailed, ""},
		"usage":                 {"do", &UsageError{errors.New("p do: wrong")}, ExitUsage, "p do: wrong\n"},
		"unknown flag":          {"do -x", nil, ExitUsage, `unknown flag "-x"`},
		"unknown command":       {"undo", nil, ExitUsage, `p: unknown command "undo"`},
		"unknown command, help": {"help undo", nil, ExitUsage, `p: unknown command "undo"`},
		"no command":            {"", nil, ExitUsage, "do more"},
		"version":               {"version", nil, ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := Main("p", "P.", commands(c.err), strings.Fields(c.args), &stdout, &stderr)
			if code != c.code || !strings.Contains(stderr.String(), c.stderr) || c.stderr == "" && stderr.Len() > 0 {
				t.Errorf("exit code %d, stderr %q; want %d, %q", code, stderr.String(), c.code, c.stderr)
			}
		})
	}
}

func TestAWordThatIsToBeTypedIsOneWordToAShell(t *testing.T) {
	for word, typed := range map[string]string{"catalogue/ci": "catalogue/ci", "": "''", "two words": "'two words'", "order/$5": "'order/$5'", "it's": `'it'\''s'`, "höhe": "'höhe'", "a\nb": "'a\nb'", "~": "'~'", "*": "'*'"} {
		if got := Typed(word); got != typed {
			t.Errorf("%q is typed %s, want %s", word, got, typed)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+Typed(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("a shell takes %s for %q, %v", Typed(word), out, err)
		}
	}
}
