// Package dbcheck looks for what is set up in a database in such a way that no
// promise would hold: a server that can lose what it has acknowledged, tables
// that a crash empties, a sequence that gives positions out ahead, columns of
// another type, sessions whose settings spell values anew. The packages that rest
// on it ask at their start, and refuse.
package dbcheck
