package consumer_test

import (
	"os"
	"reflect"
	"testing"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/doctest"
)

func TestTheTableOfDefaultsIsTheCodes(t *testing.T) {
	page, err := os.ReadFile("../docs/consuming.md")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := consumer.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	want := doctest.Defaults(reflect.ValueOf(cfg), map[string]string{"Mapping": "Wire", "Logger": "slog.Default()"}, "Name")
	for _, problem := range doctest.CheckDefaults(string(page), "consumer.Config", want) {
		t.Error(problem)
	}
}
