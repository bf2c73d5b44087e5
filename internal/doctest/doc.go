// Package doctest keeps the documentation true: what README.md and the other
// pages show is compiled, looked up or asked of the built programs.
//
//   - Each go block of a page compiles ([Wrap] makes a file of it; what a
//     reader has to imagine, such as ctx and pool, is declared for it).
//   - Each row of docs/guarantees.md names code that exists, and tests that
//     exist ([CheckGuarantees]). The table's columns are promise, code, tests:
//     code is `path` or `path:Name`, of a migration's function the newest one;
//     tests are `TestName`, one or more, in `./package`.
//   - Each command shown, in a code span or a block, exists with its flags
//     ([Commands]), each make target, each FENCELINE_ variable, each file that a
//     link leads to.
//
// The rules are functions over a file system, so that the tests can show that
// each of them fails where it should.
package doctest
