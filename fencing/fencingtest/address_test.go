package fencingtest

import (
	"net/url"
	"testing"
)

func TestAConnectionStringNeedNotSayThePort(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://app@localhost/app":      "localhost:5432",
		"postgres://app@localhost:6432/app": "localhost:6432",
		"postgres://app@[::1]/app":          "[::1]:5432",
		"postgres://app@[::1]:6432/app":     "[::1]:6432",
	} {
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if got := address(u); got != want {
			t.Errorf("%s: %s, want %s", dsn, got, want)
		}
	}
}
