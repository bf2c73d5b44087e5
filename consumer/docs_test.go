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

func TestTheColumnsForDebeziumArePrintedAsTheMappingReadsThem(t *testing.T) {
	page, err := os.ReadFile("../docs/consuming.md")
	if err != nil {
		t.Fatal(err)
	}
	if !doctest.HasLine(string(page), "transforms.outbox.table.fields.additional.placement="+consumer.DebeziumColumns) {
		t.Errorf("docs/consuming.md doesn't give additional.placement as %s", consumer.DebeziumColumns)
	}
}
