package compose_test

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// invocation is a command line of a program of ours, and where it was found.
type invocation struct {
	where   string
	command []string // program, subcommands, flags
	env     []string // FENCELINE_ variables that it is given
}

func invocations(t *testing.T) []invocation {
	t.Helper()
	project := mustLoad(t)
	var found []invocation
	for _, name := range programServices(project) {
		service := project.Services[name]
		var env []string
		for key := range service.Environment {
			if strings.HasPrefix(key, "FENCELINE_") {
				env = append(env, key)
			}
		}
		found = append(found, invocation{name, append(append([]string{}, service.Entrypoint...), service.Command...), env})
		if check := service.HealthCheck; check != nil {
			if len(check.Test) < 2 || check.Test[0] != "CMD" {
				t.Errorf("%s: the health check %q needs a shell, which the image doesn't have", name, check.Test)
				continue
			}
			found = append(found, invocation{name + ", health check", check.Test[1:], nil})
		}
	}
	return append(found, manifestInvocations(t)...)
}

// TestEachCommandFlagAndVariableExistsInThePrograms asks the built programs for
// the help of each subcommand. That help has to list every flag and variable.
func TestEachCommandFlagAndVariableExistsInThePrograms(t *testing.T) {
	used := invocations(t)
	if len(used) == 0 {
		t.Fatal("no service runs a program of ours")
	}
	bin := t.TempDir()
	built := map[string]bool{}
	for _, use := range used {
		program := path.Base(use.command[0])
		if use.command[0] != "/"+program {
			t.Errorf("%s: the image has its programs in /, not %s", use.where, use.command[0])
		}
		if _, done := built[program]; !done {
			out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, program), "../cmd/"+program).CombinedOutput()
			if err != nil {
				t.Errorf("%s: build %s: %v\n%s", use.where, program, err, out)
			}
			built[program] = err == nil
		}
		if !built[program] {
			continue
		}
		subcommands, flags := split(use.command[1:])
		help, err := helpOf(t.Context(), filepath.Join(bin, program), subcommands)
		if err != nil {
			t.Errorf("%s: %s %s -h: %v\n%s", use.where, program, strings.Join(subcommands, " "), err, help)
			continue
		}
		for _, name := range append(flags, use.env...) {
			if !mentions(help, name) {
				t.Errorf("%s: %s %s doesn't know %s; its help:\n%s", use.where, program, strings.Join(subcommands, " "), name, help)
			}
		}
	}
	// The question itself must be able to fail.
	for program, ok := range built {
		if !ok {
			continue
		}
		if help, err := helpOf(t.Context(), filepath.Join(bin, program), []string{"no-such-command"}); err == nil {
			t.Errorf("%s gives help for a command that it doesn't have:\n%s", program, help)
		}
	}
}

func TestFlagsAreToldFromSubcommands(t *testing.T) {
	subcommands, flags := split([]string{"migrate", "up", "-dry-run", "--schema=x", "-n", "3"})
	if strings.Join(subcommands, " ") != "migrate up" || strings.Join(flags, " ") != "-dry-run -schema -n" {
		t.Errorf("split = %q, %q", subcommands, flags)
	}
	if !mentions("  -schema NAME  (FENCELINE_SCHEMA)", "FENCELINE_SCHEMA") || mentions("-schema-name", "-schema") || mentions("FENCELINE_POSTGRES_DSN_FILE", "FENCELINE_POSTGRES_DSN") {
		t.Error("a name must be found as a whole word")
	}
}

// split parts a command line into its subcommands and the names of its flags.
func split(args []string) (subcommands, flags []string) {
	for _, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-"):
			name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			flags = append(flags, "-"+name)
		case len(flags) == 0:
			subcommands = append(subcommands, arg)
		}
	}
	return subcommands, flags
}

func helpOf(ctx context.Context, program string, subcommands []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(append([]string{}, subcommands...), "-h")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")} // none of ours
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mentions looks for a flag or a variable as a whole word.
func mentions(help, name string) bool {
	return regexp.MustCompile(`(^|[^\w-])-?` + regexp.QuoteMeta(name) + `($|[^\w-])`).MatchString(help)
}
