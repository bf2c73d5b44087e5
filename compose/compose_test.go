package compose_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads a compose file as the command line does: interpolated, normalised,
// and checked for references that lead nowhere and for cycles.
func load(t *testing.T, file string, env ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file}, cli.WithEnv(env), cli.WithConsistency(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

func mustLoad(t *testing.T, env ...string) *types.Project {
	t.Helper()
	project, err := load(t, "compose.yaml", env...)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestTheSetUpKeepsTheRulesOfTheHouse(t *testing.T) {
	for _, complaint := range broken(mustLoad(t)) {
		t.Error(complaint)
	}
}

func TestVariablesOfTheShellMovePortsAndSchema(t *testing.T) {
	project := mustLoad(t, "FENCELINE_POSTGRES_PORT=15432", "FENCELINE_KAFKA_PORT=19093", "FENCELINE_SCHEMA=other")
	if got := project.Services["postgres"].Ports[0].Published; got != "15432" {
		t.Errorf("PostgreSQL is published on %s", got)
	}
	kafka := project.Services["kafka"]
	if got := kafka.Ports[0].Published; got != "19093" {
		t.Errorf("Kafka is published on %s", got)
	}
	// Otherwise a client on this machine would be sent to a port where nothing is.
	if got := *kafka.Environment["KAFKA_ADVERTISED_LISTENERS"]; !strings.Contains(got, "HOST://127.0.0.1:19093") {
		t.Errorf("Kafka advertises %s", got)
	}
	if got := *project.Services["relay"].Environment["FENCELINE_SCHEMA"]; got != "other" {
		t.Errorf("the relay's schema is %s", got)
	}
}

func TestEachBrokenRuleIsSeen(t *testing.T) {
	whole, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"open port":              {`"127.0.0.1:${FENCELINE_POSTGRES_PORT:-5432}:5432"`, `"${FENCELINE_POSTGRES_PORT:-5432}:5432"`, "published on"},
		"newest image":           {"image: postgres:17.11", "image: postgres:latest", "pinned"},
		"image without tag":      {"image: postgres:17.11", "image: postgres", "pinned"},
		"root":                   {`user: "999:999"`, `user: "0:0"`, "root"},
		"image's own user":       {`    user: "999:999"`, "", "root"},
		"capabilities":           {"    cap_drop: [ALL]\n    security_opt: [\"no-new-privileges:true\"]\n    environment:\n      POSTGRES_DB", "    environment:\n      POSTGRES_DB", "capabilities"},
		"writable root":          {"  read_only: true\n  cap_drop", "  cap_drop", "root file system"},
		"secret in environment":  {"POSTGRES_PASSWORD_FILE: /run/secrets/postgres_password", "POSTGRES_PASSWORD: x", "_FILE"},
		"no health check":        {"    healthcheck:\n      <<: *patience\n      # Over TCP", "    x-check:\n      <<: *patience\n      # Over TCP", "no health check"},
		"one-shot that restarts": {"      kafka: {condition: service_healthy}\n    restart: \"no\"", "      kafka: {condition: service_healthy}\n    restart: always", "started again"},
		"started isn't ready":    {"kafka: {condition: service_healthy}", "kafka: {condition: service_started}", "being ready"},
		"unknown dependency":     {"      kafka: {condition: service_healthy}\n      topics:", "      kafak: {condition: service_healthy}\n      topics:", "kafak"},
		"cycle":                  {"  kafka:\n    image", "  kafka:\n    depends_on:\n      topics: {condition: service_completed_successfully}\n    image", "cycle"},
		"unknown network":        {"networks:\n  backend: {}", "networks:\n  other: {}", "backend"},
		"unknown secret":         {"    secrets: [postgres_password]", "    secrets: [postgres_passwort]", "postgres_passwort"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(whole), c.old) {
				t.Fatalf("compose.yaml doesn't contain %q any more", c.old)
			}
			file := filepath.Join(t.TempDir(), "compose.yaml")
			if err := os.WriteFile(file, []byte(strings.Replace(string(whole), c.old, c.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			var complaints []string
			if project, err := load(t, file); err != nil {
				complaints = []string{err.Error()}
			} else {
				complaints = broken(project)
			}
			if got := strings.Join(complaints, "\n"); !strings.Contains(got, c.want) {
				t.Errorf("complaints are %q, want one with %q", got, c.want)
			}
		})
	}
}

func TestTheImageIsStaticPinnedAndNotRoot(t *testing.T) {
	dockerfile := read(t, "Dockerfile")
	stages := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(dockerfile, -1)
	if len(stages) != 2 {
		t.Fatalf("the Dockerfile has %d stages, want one to build and one to ship", len(stages))
	}
	if !pinned(stages[0][1]) {
		t.Errorf("%q isn't pinned to a release", stages[0][1])
	}
	if stages[1][1] != "scratch" {
		t.Errorf("what is shipped starts from %q, not from scratch", stages[1][1])
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath"} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile builds without %s", want)
		}
	}
	// The linker says nothing when there is no such variable.
	injected := regexp.MustCompile(`-X github\.com/fenceline/fenceline/(\S+)\.(\w+)=`)
	for _, file := range []string{"Dockerfile", "../Makefile"} {
		found := injected.FindStringSubmatch(read(t, file))
		if found == nil {
			t.Errorf("%s injects no version", file)
			continue
		}
		sources, err := filepath.Glob("../" + found[1] + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		declared := false
		for _, source := range sources {
			declared = declared || regexp.MustCompile(`(?m)^var `+found[2]+` string$`).MatchString(read(t, source))
		}
		if !declared {
			t.Errorf("%s injects the version into %s, where no variable %s is", file, found[1], found[2])
		}
	}
	shipped := dockerfile[strings.LastIndex(dockerfile, "\nFROM "):]
	user := regexp.MustCompile(`(?m)^USER (\S+)$`).FindStringSubmatch(shipped)
	if user == nil || root(user[1]) {
		t.Fatalf("the image runs as root: %v", user)
	}
	for _, name := range programServices(mustLoad(t)) {
		if got := mustLoad(t).Services[name].User; got != user[1] {
			t.Errorf("%s runs as %s, its image as %s", name, got, user[1])
		}
	}
	// The vulnerability check looks at the standard library of this release.
	goRelease := regexp.MustCompile(`(?m)^GO_RELEASE := (\S+)$`).FindStringSubmatch(read(t, "../Makefile"))
	if goRelease == nil || !strings.HasPrefix(stages[0][1], "golang:"+goRelease[1]) {
		t.Errorf("the image is built by %s, the Makefile says %v", stages[0][1], goRelease)
	}
}

// programServices are the services that run a program of ours.
func programServices(project *types.Project) []string {
	var names []string
	for _, name := range project.ServiceNames() {
		if project.Services[name].Build != nil {
			names = append(names, name)
		}
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
