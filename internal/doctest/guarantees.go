package doctest

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

var (
	testName = regexp.MustCompile(`^(Test\w+)(/.*)?$`)
	declared = `(?m)^(func (\([^)]*\) )?%[1]s[\[(]|type %[1]s\b|(var|const) %[1]s\b|\t%[1]s(, \w+)* .*=|\t%[1]s +\S)`
)

// CheckGuarantees returns what is wrong with a page of promises: a row without
// code or without a test, a file, a name or a test that isn't there.
func CheckGuarantees(root fs.FS, page string) []string {
	var complaints []string
	rows := 0
	for i, line := range strings.Split(page, "\n") {
		complain := func(format string, args ...any) {
			complaints = append(complaints, fmt.Sprintf("line %d: ", i+1)+fmt.Sprintf(format, args...))
		}
		cells := cellsOf(line)
		if cells == nil || strings.EqualFold(cells[0], "promise") || strings.Trim(cells[0], "-: ") == "" {
			continue
		}
		rows++
		if len(cells) != 3 {
			complain("%d columns, want promise, code, tests", len(cells))
			continue
		}
		code, tests := spansOf(cells[1]), spansOf(cells[2])
		if len(code) == 0 {
			complain("the promise names no code")
		}
		for _, c := range code {
			if problem := checkCode(root, c); problem != "" {
				complain("%s", problem)
			}
		}
		for _, problem := range checkTests(root, tests) {
			complain("%s", problem)
		}
	}
	if rows == 0 {
		complaints = append(complaints, "there is no row")
	}
	return complaints
}

// cellsOf parts a row of a table; nil if it isn't one.
func cellsOf(line string) []string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") {
		return nil
	}
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

func spansOf(cell string) []string {
	var spans []string
	for _, m := range span.FindAllStringSubmatch(cell, -1) {
		spans = append(spans, m[1])
	}
	return spans
}

func checkCode(root fs.FS, code string) string {
	file, name, named := strings.Cut(code, ":")
	content, err := fs.ReadFile(root, path.Clean(file))
	if err != nil {
		return fmt.Sprintf("there is no file %s", file)
	}
	if !named {
		return ""
	}
	name = name[strings.LastIndex(name, ".")+1:] // of a method, its own name
	pattern := fmt.Sprintf(declared, regexp.QuoteMeta(name))
	if strings.HasSuffix(file, ".sql") {
		pattern = `(?i)(function|table|trigger|index|sequence|view|constraint)\s+(@schema@\.)?"?` + regexp.QuoteMeta(name) + `\b`
	}
	// The quick look first: expressions over whole files take their time.
	if !strings.Contains(string(content), name) || !regexp.MustCompile(pattern).Match(content) {
		return fmt.Sprintf("%s declares no %s", file, name)
	}
	return replaced(root, file, name)
}

// replaced says which migration has replaced a function since the one that is
// named: nobody should read the argument for a promise where it is no longer.
func replaced(root fs.FS, file, name string) string {
	if !strings.HasSuffix(file, ".up.sql") {
		return ""
	}
	later, err := fs.Glob(root, path.Dir(file)+"/*.up.sql")
	if err != nil {
		return err.Error()
	}
	created := regexp.MustCompile(`(?i)create\s+(or\s+replace\s+)?function\s+(@schema@\.)?"?` + regexp.QuoteMeta(name) + `\b`)
	for _, other := range later {
		if content, err := fs.ReadFile(root, other); other > file && err == nil && created.Match(content) {
			return fmt.Sprintf("%s has replaced the %s of %s", other, name, file)
		}
	}
	return ""
}

// checkTests takes tests and the packages behind them.
func checkTests(root fs.FS, spans []string) []string {
	var complaints, waiting []string
	checked := 0
	for _, s := range spans {
		if m := testName.FindStringSubmatch(s); m != nil {
			waiting = append(waiting, m[1])
			continue
		}
		if !strings.HasPrefix(s, "./") {
			complaints = append(complaints, fmt.Sprintf("`%s` is neither a test nor a package such as `./relay`", s))
			continue
		}
		if len(waiting) == 0 {
			complaints = append(complaints, fmt.Sprintf("no test is named before `%s`", s))
		}
		for _, test := range waiting {
			checked++
			if !hasTest(root, path.Clean(s), test) {
				complaints = append(complaints, fmt.Sprintf("%s has no %s", s, test))
			}
		}
		waiting = nil
	}
	for _, test := range waiting {
		complaints = append(complaints, fmt.Sprintf("the package of %s isn't named", test))
	}
	if checked == 0 {
		complaints = append(complaints, "the promise names no test")
	}
	return complaints
}

func hasTest(root fs.FS, dir, test string) bool {
	files, err := fs.Glob(root, dir+"/*_test.go")
	if err != nil {
		return false
	}
	for _, file := range files {
		content, err := fs.ReadFile(root, file)
		if err == nil && strings.Contains(string(content), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
