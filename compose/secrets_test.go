package compose_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestTheConnectionStringHasThePasswordAndIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "secrets.sh")
	if err := os.WriteFile(script, []byte(read(t, "secrets.sh")), 0o755); err != nil {
		t.Fatal(err)
	}
	var before string
	for range 2 {
		if out, err := exec.CommandContext(t.Context(), "sh", script).CombinedOutput(); err != nil {
			t.Fatalf("secrets.sh: %v\n%s", err, out)
		}
		password := read(t, filepath.Join(dir, "secrets", "postgres_password"))
		dsn, err := url.Parse(read(t, filepath.Join(dir, "secrets", "postgres_dsn")))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := dsn.User.Password(); got != password || len(password) < 32 {
			t.Errorf("the connection string doesn't have the password, or it is short (%d characters)", len(password))
		}
		if before != "" && before != password {
			t.Error("a second run has made another password, which PostgreSQL doesn't know")
		}
		before = password
	}
	// Closed to others at the folder; the containers' users read the files.
	for name, want := range map[string]os.FileMode{"secrets": 0o700, "secrets/postgres_dsn": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", name, info.Mode().Perm(), want, err)
		}
	}
	project := mustLoad(t)
	postgres := project.Services["postgres"].Environment
	dsn, err := url.Parse(read(t, filepath.Join(dir, "secrets", "postgres_dsn")))
	if err != nil {
		t.Fatal(err)
	}
	if dsn.Hostname() != "postgres" || dsn.User.Username() != *postgres["POSTGRES_USER"] || dsn.Path != "/"+*postgres["POSTGRES_DB"] {
		t.Errorf("%s doesn't fit the service postgres", dsn.Redacted())
	}
}
