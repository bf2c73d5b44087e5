package doctest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// Imports are the packages that a snippet may use without saying so.
var Imports = map[string]string{
	"context":     "context",
	"errors":      "errors",
	"fmt":         "fmt",
	"http":        "net/http",
	"slog":        "log/slog",
	"os":          "os",
	"time":        "time",
	"pgx":         "github.com/jackc/pgx/v5",
	"pgxpool":     "github.com/jackc/pgx/v5/pgxpool",
	"consumer":    "github.com/fenceline/fenceline/consumer",
	"kafkasource": "github.com/fenceline/fenceline/consumer/kafkasource",
	"fencing":     "github.com/fenceline/fenceline/fencing",
	"replica":     "github.com/fenceline/fenceline/fencing/replica",
	"migrations":  "github.com/fenceline/fenceline/migrations",
	"outbox":      "github.com/fenceline/fenceline/outbox",
	"relay":       "github.com/fenceline/fenceline/relay",
	"kafkapub":    "github.com/fenceline/fenceline/relay/kafkapub",
}

// Imagined is what a reader takes for granted: a snippet may use it without
// declaring it.
var Imagined = map[string]string{
	"ctx":      "context.Context",
	"pool":     "*pgxpool.Pool",
	"primary":  "*pgxpool.Pool",
	"replicaA": "*pgxpool.Pool",
	"replicaB": "*pgxpool.Pool",
	"conn":     "*pgx.Conn",
	"fences":   "*fencing.Fences",
	"lease":    "*fencing.Lease",
	"content":  "fencing.Content",
	"write":    "func(ctx context.Context, tx fencing.Tx) error",
	"w":        "http.ResponseWriter",
	"r":        "*http.Request",
	"id":       "string",
	"key":      "string",
	"body":     "[]byte",
	"brokers":  "[]string",
}

// Wrap makes a Go file of a snippet: of declarations as they are, of statements
// as the body of a function. Imports are added, and what is declared but only
// assigned is used.
func Wrap(snippet string) (string, error) {
	if strings.HasPrefix(strings.TrimSpace(snippet), "package ") {
		return snippet, nil
	}
	fset := token.NewFileSet()
	body, tail := snippet, ""
	file, err := parser.ParseFile(fset, "", "package snippet\n"+snippet, parser.SkipObjectResolution)
	if err != nil {
		var own []string // what it declares itself
		for range 2 {
			body = "func _(" + imagined(own) + ") {\n" + snippet
			if file, err = parser.ParseFile(fset, "", "package snippet\n"+body+"\n}", parser.SkipObjectResolution); err != nil {
				return "", err
			}
			own = assigned(file)
		}
		for _, name := range own {
			tail += "_ = " + name + "\n"
		}
		tail += "}\n"
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && Imports[x.Name] != "" {
				used[x.Name] = true
			}
		}
		return true
	})
	var b strings.Builder
	b.WriteString("package snippet\n")
	for _, name := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(&b, "import %s %q\n", name, Imports[name])
	}
	// The compiler then names the page's own lines, less the constant number of those before.
	b.WriteString(body + "\n" + tail)
	return b.String(), nil
}

func imagined(but []string) string {
	var params []string
	for _, name := range slices.Sorted(maps.Keys(Imagined)) {
		if !slices.Contains(but, name) {
			params = append(params, name+" "+Imagined[name])
		}
	}
	return strings.Join(params, ", ")
}

// assigned are the names that the wrapping function's own statements define.
func assigned(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		for _, stmt := range f.Body.List {
			a, ok := stmt.(*ast.AssignStmt)
			if !ok || a.Tok != token.DEFINE {
				continue
			}
			for _, x := range a.Lhs {
				if id, ok := x.(*ast.Ident); ok && id.Name != "_" && !slices.Contains(names, id.Name) {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}
