// Package archtest holds the rules of the house as tests that need nothing but
// Go, so that they are checked wherever the other tests run:
//
//   - who may import whom, along whole chains of imports (imports_test.go);
//   - every package has a doc.go, and every exported name of a public package is
//     documented (docs_test.go);
//   - no file leaves work unsaid or points at something outside of the tree
//     (words_test.go).
//
// It reads source files, it doesn't build them. So the rules hold on every
// platform at once, and for a package that doesn't compile yet as well.
//
// Each rule is a function from a tree to complaints. One test applies it to this
// repository; others apply it to small trees that break it, so that a rule that
// has stopped seeing anything is noticed.
package archtest
