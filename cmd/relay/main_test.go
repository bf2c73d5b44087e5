package main

import (
	"os"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

const secret = "very-secret-7391"

// settings is an environment with which "relay run" would start, if the servers
// were there.
var settings = cmdtest.Env{"FENCELINE_POSTGRES_DSN=postgres://u:" + secret + "@127.0.0.1:1/db", "FENCELINE_KAFKA_BROKERS=127.0.0.1:1"}

// want checks the exit code, that each text is in what was printed, that no
// secret is, and that it isn't a stack trace.
func want(t *testing.T, r cmdtest.Result, code int, texts ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d", r.Code, code)
	}
	for _, text := range texts {
		if !strings.Contains(r.All(), text) {
			t.Errorf("what was printed doesn't contain %q", text)
		}
	}
	if strings.Contains(r.All(), secret) {
		t.Error("a secret was printed")
	}
	if strings.Contains(r.All(), "goroutine ") {
		t.Error("it panicked")
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", r.Stdout, r.Stderr)
	}
}

func TestAWrongCommandLineEndsWith2AndSaysWhatIsRight(t *testing.T) {
	for name, c := range map[string]struct {
		env   cmdtest.Env
		args  string
		texts []string
	}{
		"no command":                {nil, "", []string{"a command is missing", "migrate up", "status", "Exit codes"}},
		"unknown command":           {nil, "publish", []string{`unknown command "publish"`, `"relay help" lists`}},
		"flag before the command":   {nil, "-lease-ttl 5s run", []string{"a command comes first"}},
		"connection string there":   {nil, "postgres://u:" + secret + "@h/db", []string{"unknown command", "not shown"}},
		"no migrate command":        {nil, "migrate", []string{"a command is missing", "up|down|status|print"}},
		"unknown migrate command":   {nil, "migrate sideways", []string{`unknown command "sideways"`, "up, down, status and print"}},
		"unknown flag":              {settings, "run -verbose", []string{`unknown flag "-verbose"`, `"relay run -help"`}},
		"a flag misspelt":           {settings, "run -lease 5s", []string{`unknown flag "-lease"`, "is -lease-ttl meant?"}},
		"an unquoted value":         {settings, "run -postgres host=h password=" + secret, []string{"unexpected argument", "quotes"}},
		"a value missing":           {settings, "run -topics", []string{"-topics: a value is missing"}},
		"nothing set":               {nil, "run", []string{"2 problems", "-postgres is missing", "FENCELINE_POSTGRES_DSN_FILE", "-kafka is missing", "FENCELINE_KAFKA_BROKERS"}},
		"no connection string":      {cmdtest.Env{"FENCELINE_POSTGRES_DSN=postgres://u:" + secret + "@h:port/db"}, "status", []string{"FENCELINE_POSTGRES_DSN: port: want a number", "postgres://user@host:5432/database"}},
		"lease time of zero":        {settings, "run -lease-ttl 0", []string{`-lease-ttl: "0"`, "a duration from 1s to 24h"}},
		"lease time without unit":   {append(cmdtest.Env{"FENCELINE_LEASE_TTL=10"}, settings...), "run", []string{`FENCELINE_LEASE_TTL: "10"`, "such as 10s"}},
		"schema that injects":       {settings, `run -schema x";drop`, []string{`x\";drop`, "is not allowed", "lower-case letters"}},
		"schema that injects, up":   {settings, `migrate up -schema x";drop`, []string{"is not allowed", "lower-case letters"}},
		"schema that injects, too":  {settings, `status -schema x";drop`, []string{"is not allowed", "lower-case letters"}},
		"connection string, broker": {settings, "run -kafka postgres://u:" + secret + "@h/db", []string{"-kafka: (not shown, since it may hold a secret): want host:port"}},
		"connection string, schema": {settings, "status -schema postgres://u:" + secret + "@h/db", []string{"-schema: (not shown, since it may hold a secret)", "lower-case letters"}},
		"broker without port":       {settings, "run -kafka localhost", []string{`-kafka: "localhost"`, "host:port"}},
		"port too large":            {settings, "run -http 127.0.0.1:99999", []string{"1 problem", `-http: "127.0.0.1:99999"`, "0 to 65535"}},
		"no such directory":         {settings, "verify -dir /does/not/exist", []string{"1 problem", `-dir: "/does/not/exist"`, "no such directory"}},
		"a consumer twice":          {settings, "verify -consumers a,b,a", []string{"1 problem", `-consumers: "a,b,a": "a" is there twice`}},
		"TLS settings":              {settings, "run -kafka-ca-file ca.pem -kafka-user u", []string{"relay run: 2 problems in the configuration", "  - -kafka-ca-file: it is set, but TLS is off", "  - -kafka-sasl: it is missing", `"relay run -help"`}},
		"no file of authorities":    {settings, "doctor -kafka-tls -kafka-ca-file /does/not/exist", []string{"relay doctor: 1 problem in the configuration", "  - -kafka-ca-file: open /does/not/exist"}},
		"log format":                {settings, "run -log-format xml", []string{`-log-format: "xml"`, "text, json"}},
		"nobody who does it":        {settings, "history bump -who=", []string{"-who is missing (who does this"}},
		"somebody of a long name":   {settings, "lease own -who " + strings.Repeat("x", 256) + " k", []string{"-who: ", "want 1 to 255 bytes"}},
		"down without a part":       {settings, "migrate down", []string{"-part is missing", "producer, consumer"}},
		"to without a part":         {settings, "migrate up -to 1", []string{"-to needs -part"}},
		"all that is wrong at once": {cmdtest.Env{"FENCELINE_LOG_LEVEL=loud"}, `run -grace -1s -nope=1 -schema public -kafka x`,
			[]string{"6 problems", `"-nope"`, "-postgres is missing", `-schema: "public"`, `-kafka: "x"`, `-grace: "-1s"`, `FENCELINE_LOG_LEVEL: "loud"`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cmdtest.Run(t, c.env, "relay", strings.Fields(c.args)...)
			want(t, r, 2, c.texts...)
			if r.Stdout != "" {
				t.Errorf("a mistake was printed to standard output: %q", r.Stdout)
			}
		})
	}
}

func TestHelpAndVersionEndWith0(t *testing.T) {
	for args, texts := range map[string][]string{
		"help":              {"relay <command>", "Exit codes: 0 done", "1 failed", "2 wrong usage"},
		"-h":                {"relay <command>"},
		"--help":            {"relay <command>"},
		"help run":          {"-lease-ttl", "FENCELINE_LEASE_TTL", "Defaults to 10s."},
		"run -help":         {"-postgres", "FENCELINE_POSTGRES_DSN_FILE", "Required."},
		"migrate -h":        {"up|down|status|print"},
		"migrate up --help": {"-dry-run", "-part"},
		"migrate down -h":   {"-force"},
		"migrate status -h": {"-schema"},
		"migrate print -h":  {"-direction"},
		"status -h":         {"-json", "_monitor"},
		"version":           {"relay ", "go1."},
		"-version":          {"relay ", "go1."},
		"version -h":        {"Prints the version"},
	} {
		t.Run(args, func(t *testing.T) {
			r := cmdtest.Run(t, nil, "relay", strings.Fields(args)...)
			want(t, r, 0, texts...)
			if r.Stderr != "" {
				t.Errorf("printed to standard error: %q", r.Stderr)
			}
		})
	}
}
