package quakes

import (
	"errors"
	"strings"
	"testing"
)

func TestEmbeddedInputIsTheWholeWeek(t *testing.T) {
	reports, err := All()
	if err != nil {
		t.Fatal(err)
	}
	perNet := map[string]int{}
	for _, r := range reports {
		perNet[r.Net]++
	}
	if len(reports) != 1707 || len(perNet) != 12 || perNet["ci"] != 386 || perNet["se"] != 1 {
		t.Errorf("%d reports of %d networks, ci %d, se %d; want 1707 of 12, 386, 1", len(reports), len(perNet), perNet["ci"], perNet["se"])
	}
}

func TestALineThatIsNotAReportIsNamed(t *testing.T) {
	good := `{"id":"a","net":"ci","updated":1,"time":1,"mag":1.5}`
	for name, bad := range map[string]string{
		"not JSON":     `what is this`,
		"no id":        `{"net":"ci","updated":1,"mag":1}`,
		"no net":       `{"id":"b","updated":1,"mag":1}`,
		"no magnitude": `{"id":"b","net":"ci","updated":1}`,
		"no time":      `{"id":"b","net":"ci","mag":1}`,
		"same id":      good,
	} {
		_, err := Read(strings.NewReader(good + "\n\n" + bad + "\n"))
		var line *LineError
		if !errors.As(err, &line) || line.Line != 3 || !strings.Contains(err.Error(), "take the line out") {
			t.Errorf("%s: %v, want the number of the line and a remedy", name, err)
		}
	}
}

func TestAPayloadIsReadLikeALine(t *testing.T) {
	r, err := Parse([]byte(` {"id":"a","net":"ci","updated":1700000000000,"time":1,"mag":-0.5,"more":"is ignored"} `))
	if err != nil || r.ID != "a" || r.Net != "ci" || r.Magnitude != -0.5 || r.UpdatedAt().Format("2006-01-02T15:04:05Z") != "2023-11-14T22:13:20Z" {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, bad := range []string{"", "null", "[]", `{"id":"a","net":"ci","updated":"soon","mag":1}`, `{"id":"a","net":"ci","updated":1,"mag":1} {}`} {
		var line *LineError
		if _, err := Parse([]byte(bad)); !errors.As(err, &line) {
			t.Errorf("%q: %v, want a *LineError", bad, err)
		}
	}
}

func TestALineThatDoesNotEndIsNotReadIntoMemory(t *testing.T) {
	good := `{"id":"a","net":"ci","updated":1,"time":1,"mag":1.5}` + "\n"
	var line *LineError
	if _, err := Read(strings.NewReader(good + strings.Repeat("x", 2<<20))); !errors.As(err, &line) || line.Line != 2 {
		t.Errorf("error is %v, want one about line 2", err)
	}
}
