package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

var day = time.Date(2026, 11, 5, 0, 0, 0, 0, time.UTC)

func report(id string, modules ...string) *fstest.MapFile {
	var affected []string
	for _, m := range modules {
		affected = append(affected, `{"package":{"name":"`+m+`","ecosystem":"Go"}}`)
	}
	return &fstest.MapFile{Data: []byte(`{"id":"` + id + `","aliases":["CVE-1"],"affected":[` + strings.Join(affected, ",") + `]}`)}
}

func TestEachReportIsIndexedOnceUnderEachModuleItNames(t *testing.T) {
	dir := t.TempDir()
	n, err := layOut(fstest.MapFS{
		"GO-2026-0001.json": report("GO-2026-0001", "stdlib", "example.com/a", "stdlib"),
		"GO-2026-0002.json": report("GO-2026-0002", "stdlib"),
	}, dir, day)
	if err != nil || n != 2 {
		t.Fatalf("layOut = %d, %v", n, err)
	}
	want := `[{"path":"example.com/a","vulns":[{"id":"GO-2026-0001","modified":"2026-11-05T00:00:00Z"}]},` +
		`{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":"2026-11-05T00:00:00Z"},{"id":"GO-2026-0002","modified":"2026-11-05T00:00:00Z"}]}]`
	if got := read(t, dir, "index/modules.json"); got != want {
		t.Errorf("modules.json\n got %s\nwant %s", got, want)
	}
	if got, want := read(t, dir, "index/db.json"), `{"modified":"2026-11-05T00:00:00Z"}`; got != want {
		t.Errorf("db.json = %s, want %s", got, want)
	}
	var stored struct{ ID string }
	if err := json.Unmarshal([]byte(read(t, dir, "ID/GO-2026-0002.json")), &stored); err != nil || stored.ID != "GO-2026-0002" {
		t.Errorf("stored report = %+v, %v", stored, err)
	}
}

func TestAReportThatCannotBeTrustedStopsTheLayout(t *testing.T) {
	for name, src := range map[string]fstest.MapFS{
		"not JSON":         {"GO-1.json": {Data: []byte("{")}},
		"another's name":   {"GO-1.json": report("GO-2", "stdlib")},
		"names no modules": {"GO-1.json": report("GO-1")},
	} {
		if n, err := layOut(src, t.TempDir(), day); err == nil {
			t.Errorf("%s: layOut = %d, want an error", name, n)
		}
	}
}

func TestAnUnusablePublicDatabaseIsAnErrorAndNotAnEmptyOne(t *testing.T) {
	answers := map[string]string{"/gone": "", "/html": "<html>", "/empty": "{}"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := answers[strings.TrimSuffix(r.URL.Path, "/index/db.json")]
		if body == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	for path := range answers {
		if modified, err := probe(t.Context(), server.URL+path); err == nil {
			t.Errorf("probe(%s) = %v, want an error", path, modified)
		}
	}
	answers["/good"] = `{"modified":"2026-11-05T00:00:00Z"}`
	if modified, err := probe(t.Context(), server.URL+"/good"); err != nil || !modified.Equal(day) {
		t.Errorf("probe = %v, %v", modified, err)
	}
}

func TestAnUnknownFlagFails(t *testing.T) {
	var out bytes.Buffer
	if code, err := run(t.Context(), []string{"-nonsense"}, &out, &out); code != 1 || err == nil {
		t.Errorf("run = %d, %v", code, err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
