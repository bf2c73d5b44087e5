package devstack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestTheOverrideWinsOverPathAndPathOverTheMachine(t *testing.T) {
	ctx := context.Background()
	root := openDir(t, nil)
	override := fakePostgres(t, filepath.Join(root, "override"), "16.1")
	path := fakePostgres(t, filepath.Join(root, "path"), "17.2")
	fakePostgres(t, filepath.Join(root, "lib/18/bin"), "18.3")
	globs := []string{filepath.Join(root, "lib/*/bin")}

	for _, c := range []struct{ override, path, want string }{
		{override, path, "16.1"},
		{"", path, "17.2"},
		{"", filepath.Join(root, "nowhere"), "18.3"},
	} {
		found, err := installedPostgres(ctx, c.override, c.path, globs)
		if err != nil || found.Version != c.want {
			t.Errorf("override %q, path %q: found %+v, %v; want %s", c.override, c.path, found, err, c.want)
		}
	}
}

func TestTheNewestOfTheMachineWins(t *testing.T) {
	root := openDir(t, nil)
	for dir, version := range map[string]string{"9.6": "9.6.24", "15": "15.12", "16": "16.9", "17": "17.10 (Debian 17.10-1)", "17beta": "17.9"} {
		fakePostgres(t, filepath.Join(root, dir), version)
	}
	found, err := installedPostgres(context.Background(), "", "", []string{filepath.Join(root, "*")})
	if err != nil || found.Version != "17.10" || found.Major != 17 {
		t.Fatalf("found %+v, %v", found, err)
	}
}

func TestAPostgresThatIsTooOldIsPassedOver(t *testing.T) {
	root := openDir(t, nil)
	old := fakePostgres(t, filepath.Join(root, "old"), "14.18")
	if found, err := installedPostgres(context.Background(), "", old, []string{old}); !errors.Is(err, ErrNoPostgres) {
		t.Fatalf("found %+v, %v", found, err)
	}
}

func TestAnOverrideThatDoesNotWorkIsAnErrorAndNotPassedOver(t *testing.T) {
	root := openDir(t, nil)
	good := fakePostgres(t, filepath.Join(root, "good"), "17.2")
	old := fakePostgres(t, filepath.Join(root, "old"), "14.18")
	for _, override := range []string{filepath.Join(root, "nowhere"), old} {
		_, err := installedPostgres(context.Background(), override, good, nil)
		contains(t, err, "FENCELINE_POSTGRES_BIN="+override, "15 or newer")
	}
}

func TestLinksInPathAreFollowedToTheirDirectory(t *testing.T) {
	root := openDir(t, nil)
	real := fakePostgres(t, filepath.Join(root, "real"), "17.2")
	links := filepath.Join(root, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(real, "postgres"), filepath.Join(links, "postgres")); err != nil {
		t.Fatal(err)
	}
	found, err := installedPostgres(context.Background(), "", links, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resolved, _ := filepath.EvalSymlinks(real); found.Dir != resolved {
		t.Fatalf("found %s, want %s", found.Dir, resolved)
	}
}

func TestRootPassesOverBinariesThatTheServersAccountCannotReach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose servers run as another account")
	}
	closed := openDir(t, nil)
	bin := fakePostgres(t, filepath.Join(closed, "bin"), "17.2")
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if found, err := installedPostgres(context.Background(), "", bin, nil); !errors.Is(err, ErrNoPostgres) {
		t.Fatalf("found %+v, %v", found, err)
	}
}
