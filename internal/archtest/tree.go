package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Module is the path of the module whose rules these are.
const Module = "github.com/fenceline/fenceline"

// File is one parsed Go file.
type File struct {
	Name    string // path inside the tree, with slashes
	Test    bool   // its name ends in _test.go
	AST     *ast.File
	Imports []string
}

// Package is a folder of Go files.
type Package struct {
	Path  string // folder inside the tree, "." for the root
	Files []File
}

// Tree is the Go code of a module, by folder.
type Tree struct {
	Fset     *token.FileSet
	Packages map[string]*Package
}

// skipped are folders that hold no source of this module.
func skipped(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if dir == "." {
		return false
	}
	if base == "testdata" || base == "bin" || strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod")) // a module of its own
	return err == nil
}

// Load parses the Go files of the module whose root fsys is.
func Load(fsys fs.FS) (*Tree, error) {
	tree := &Tree{Fset: token.NewFileSet(), Packages: map[string]*Package{}}
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if skipped(fsys, name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(tree.Fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("archtest: %w", err)
		}
		file := File{Name: name, Test: strings.HasSuffix(name, "_test.go"), AST: parsed}
		for _, spec := range parsed.Imports {
			file.Imports = append(file.Imports, strings.Trim(spec.Path.Value, "`\""))
		}
		dir := path.Dir(name)
		if tree.Packages[dir] == nil {
			tree.Packages[dir] = &Package{Path: dir}
		}
		tree.Packages[dir].Files = append(tree.Packages[dir].Files, file)
		return nil
	})
	return tree, err
}

// Sorted lists the packages by path.
func (t *Tree) Sorted() []*Package {
	var list []*Package
	for _, pkg := range t.Packages {
		list = append(list, pkg)
	}
	slices.SortFunc(list, func(a, b *Package) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// under reports whether a slash-separated path is dir or lies below it.
func under(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir+"/")
}

func underAny(name string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return under(name, dir) })
}
