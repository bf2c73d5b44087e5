package archtest

import (
	"fmt"
	"go/ast"
	"path"
	"strings"
)

// CheckDocs returns each package without a package comment in its doc.go and
// each exported name of a public package without a comment.
//
// Methods of interfaces and the fields of types named …Config need a comment of
// their own, since they are contracts and settings; so does a field of another
// struct unless its type has a comment, which then speaks for the fields too.
func CheckDocs(t *Tree) []string {
	var complaints []string
	for _, pkg := range t.Sorted() {
		complaints = append(complaints, checkDocFile(pkg)...)
		if !public(pkg.Path) {
			continue
		}
		for _, file := range pkg.Files {
			if file.Test {
				continue
			}
			for _, undocumented := range undocumentedIn(file.AST) {
				complaints = append(complaints, fmt.Sprintf("%s: %s has no comment", t.Fset.Position(undocumented.Pos()), undocumented.Name))
			}
		}
	}
	return complaints
}

// public reports whether users can import a package.
func public(dir string) bool {
	return !underAny(dir, []string{"internal", "cmd", "compose"}) && !strings.Contains("/"+dir+"/", "/internal/")
}

func checkDocFile(pkg *Package) []string {
	var complaints []string
	found := false
	for _, file := range pkg.Files {
		if path.Base(file.Name) == "doc.go" {
			found = file.AST.Doc != nil
		} else if file.AST.Doc != nil && !file.Test {
			complaints = append(complaints, fmt.Sprintf("%s has a package comment; it belongs into doc.go", file.Name))
		}
	}
	if !found {
		complaints = append(complaints, fmt.Sprintf("%s has no doc.go with a package comment that is its design", pkg.Path))
	}
	return complaints
}

func undocumentedIn(file *ast.File) []*ast.Ident {
	var found []*ast.Ident
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Name.IsExported() && decl.Doc == nil && exportedReceiver(decl) {
				found = append(found, decl.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				found = append(found, undocumentedInSpec(decl, spec)...)
			}
		}
	}
	return found
}

// exportedReceiver reports whether a function is no method, or one that users
// can see.
func exportedReceiver(decl *ast.FuncDecl) bool {
	if decl.Recv == nil {
		return true
	}
	typ := decl.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return false
		}
	}
}

func undocumentedInSpec(decl *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	var found []*ast.Ident
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		if decl.Doc != nil || spec.Doc != nil || spec.Comment != nil {
			return nil
		}
		for _, name := range spec.Names {
			if name.IsExported() {
				found = append(found, name)
			}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return nil
		}
		doc := spec.Doc
		if doc == nil {
			doc = decl.Doc
		}
		if doc == nil && spec.Comment == nil {
			found = append(found, spec.Name)
		}
		var members *ast.FieldList
		each := true // each member needs its own comment
		switch typ := spec.Type.(type) {
		case *ast.StructType:
			members = typ.Fields
			each = strings.HasSuffix(spec.Name.Name, "Config")
		case *ast.InterfaceType:
			members = typ.Methods
		default:
			return found
		}
		for _, member := range members.List {
			if member.Doc != nil || member.Comment != nil || (!each && doc != nil) {
				continue
			}
			for _, name := range member.Names {
				if name.IsExported() {
					found = append(found, name)
				}
			}
		}
	}
	return found
}
