package apachekafka

import (
	"strings"
	"testing"
)

func TestTheVersionIsTheOneThatMavenFetches(t *testing.T) {
	if !strings.Contains(string(pom), "<version>"+Version+"</version>") {
		t.Fatalf("pom.xml doesn't ask for %s", Version)
	}
}
