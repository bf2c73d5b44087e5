package main

import (
	"errors"
	"strings"
	"testing"
)

// Whoever gives the demo a server of theirs may show the screen to others.
func TestWhatToTypeForALookAroundRepeatsNoConnectionStringThatWasGiven(t *testing.T) {
	g := &stage{dsn: "postgres://u:planted-secret@h/d", given: true, brokers: []string{"h:1", "h:2"}, schema: "fenceline_demo_x", modelSchema: "quake_report_x"}
	if text := strings.Join(g.look(), "\n"); strings.Contains(text, "planted-secret") || !strings.Contains(text, "that you have given") ||
		!strings.Contains(text, "FENCELINE_KAFKA_BROKERS=h:1,h:2 FENCELINE_SCHEMA=fenceline_demo_x") {
		t.Errorf("of a server that was given:\n%s", text)
	}
	g.given, g.dsn = false, "host=/tmp/it's user=postgres"
	if text := strings.Join(g.look(), "\n"); !strings.Contains(text, `export FENCELINE_POSTGRES_DSN='host=/tmp/it'\''s user=postgres'`) {
		t.Errorf("of a server for this run alone:\n%s", text)
	}
}

func TestWhatMayBeLeftBehindIsNamed(t *testing.T) {
	g := &stage{given: true, givenKafka: true, schema: "fenceline_demo_x", workSchema: "quake_work_x", modelSchema: "quake_report_x", topic: "quakes-demo-x", group: "quake-report-x"}
	text := (&leftError{g, errors.Join(errors.New("one"), errors.New("other"))}).Error()
	for _, name := range []string{"not everything", "one; other", g.schema, g.workSchema, g.modelSchema, "roles", g.topic, g.group} {
		if !strings.Contains(text, name) {
			t.Errorf("no %q in %s", name, text)
		}
	}
	if text := (&leftError{&stage{schema: g.schema}, errors.New("one")}).Error(); strings.Contains(text, g.schema) {
		t.Errorf("servers that are gone are to be looked at: %s", text)
	}
}
