package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// CacheDir is where downloads are kept between runs: the directory named by FENCELINE_CACHE, else "fenceline" in the
// user's cache directory. Root's own cache can't be reached by the account that runs its PostgreSQL, so root uses
// /var/cache/fenceline (on macOS /Library/Caches/fenceline). The directory exists when CacheDir returns.
func CacheDir() (string, error) {
	dir := os.Getenv("FENCELINE_CACHE")
	switch {
	case dir != "":
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("devstack: FENCELINE_CACHE=%s: %w", dir, err)
		}
		dir = abs
	case os.Geteuid() == 0 && runtime.GOOS == "darwin":
		dir = "/Library/Caches/fenceline"
	case os.Geteuid() == 0:
		dir = "/var/cache/fenceline"
	default:
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("devstack: no cache directory (set FENCELINE_CACHE to one): %w", err)
		}
		dir = filepath.Join(base, "fenceline")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("devstack: make the cache directory (FENCELINE_CACHE can name another): %w", err)
	}
	return dir, nil
}
