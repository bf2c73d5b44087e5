package devstack

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchCommand is the name under which this program starts itself again to fetch PostgreSQL.
const fetchCommand = "fenceline-fetch-postgres"

// init makes every program that links this package able to be that child, test binaries included.
func init() {
	if os.Args[0] == fetchCommand && len(os.Args) == 4 {
		os.Exit(fetchMain(os.Args[1], os.Args[2], os.Args[3]))
	}
}

// fetchMain fetches into staging/binaries and returns an exit code. Progress goes to stdout, a line each.
//
// The library knows where its binaries are and how to unpack them, but offers that only as the first half of a start.
// So it is asked to start a cluster that isn't one: it fetches, unpacks, takes the data directory's PG_VERSION for a
// cluster to reuse, and fails to start it. No server ever runs; whether the binaries are there tells how it went.
func fetchMain(staging, repository, version string) int {
	go func() {
		// Standard input ends when the parent dies: then so do we.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	http.DefaultTransport = &meter{next: http.DefaultTransport, version: version}

	data := filepath.Join(staging, "not-a-cluster")
	binaries := filepath.Join(staging, "binaries")
	major, _, _ := strings.Cut(version, ".")
	if err := os.Mkdir(data, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	port, err := FreePort()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg := embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		Port(uint32(port)).
		CachePath(filepath.Join(staging, "archive")).
		RuntimePath(filepath.Join(staging, "runtime")).
		BinariesPath(binaries).
		DataPath(data).
		Logger(io.Discard)
	if repository != "" {
		cfg = cfg.BinaryRepositoryURL(strings.TrimRight(repository, "/"))
	}
	err = embeddedpostgres.NewDatabase(cfg).Start()
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		if _, statErr := os.Stat(filepath.Join(binaries, "bin", name)); statErr != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// meter reports the progress of large downloads.
type meter struct {
	next    http.RoundTripper
	version string
}

func (m *meter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(r)
	if err == nil && response.ContentLength > 1<<20 {
		response.Body = &meteredBody{ReadCloser: response.Body, version: m.version, total: response.ContentLength}
	}
	return response, err
}

type meteredBody struct {
	io.ReadCloser
	version     string
	read, total int64
	reported    time.Time
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if now := time.Now(); b.read == b.total || now.Sub(b.reported) > 500*time.Millisecond {
		b.reported = now
		fmt.Printf("fetching PostgreSQL %s: %d of %d MB\n", b.version, b.read>>20, b.total>>20)
	}
	return n, err
}
