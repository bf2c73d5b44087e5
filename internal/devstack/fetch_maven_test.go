package devstack

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestTheArtifactIsReadFromItsPathInARepository(t *testing.T) {
	for file, want := range map[string]string{
		"/io/zonky/test/postgres/binaries-linux-amd64/18.3.0/binaries-linux-amd64-18.3.0.jar":        "io.zonky.test.postgres:binaries-linux-amd64:18.3.0",
		"/io/zonky/test/postgres/binaries-linux-amd64/18.3.0/binaries-linux-amd64-18.3.0.jar.sha256": "",
		"/io/zonky/binaries/18.3.0/other-18.3.0.jar":                                                 "",
		"/a-1.jar": "",
	} {
		if got, ok := mavenArtifact(file); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", file, got, ok, want)
		}
	}
}

// fakeMaven is a mvn in PATH that does as the script says.
func fakeMaven(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mvn"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("FENCELINE_POSTGRES_REPOSITORY", "")
	t.Setenv("FENCELINE_CACHE", openDir(t, nil))
}

func TestWhereMavenIsItFetchesAndItsFailureIsNamed(t *testing.T) {
	fakeMaven(t, `echo "no mirror has $*" >&2; exit 1`)
	_, err := fetchedPostgres(context.Background(), FetchedPostgres, nil)
	contains(t, err, "with Maven", "io.zonky.test.postgres:embedded-postgres-binaries-", ":"+FetchedPostgres, "no mirror has", "FENCELINE_POSTGRES_REPOSITORY")
}

func TestOneMajorVersionIsFoundAndNeverReplacedByAnother(t *testing.T) {
	ctx := context.Background()
	old := installGlobs
	t.Cleanup(func() { installGlobs = old })
	root := openDir(t, nil)
	fakePostgres(t, filepath.Join(root, "15"), "15.12")
	fakePostgres(t, filepath.Join(root, "17"), "17.2")
	installGlobs = []string{filepath.Join(root, "*")}
	fakeMaven(t, "exit 1")
	t.Setenv("FENCELINE_POSTGRES_BIN", "")

	if found, err := FindPostgresMajor(ctx, 15, nil); err != nil || found.Version != "15.12" {
		t.Errorf("15: %+v, %v", found, err)
	}
	if found, err := FindPostgresMajor(ctx, 18, nil); err == nil {
		t.Errorf("18 isn't here and can't be fetched, found %+v", found)
	}
	_, err := FindPostgresMajor(ctx, 9, nil)
	contains(t, err, "PostgreSQL 9")
	t.Setenv("FENCELINE_POSTGRES_BIN", filepath.Join(root, "17"))
	_, err = FindPostgresMajor(ctx, 18, nil)
	contains(t, err, "FENCELINE_POSTGRES_BIN", "17.2", "18")
}
