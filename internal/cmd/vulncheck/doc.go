// Command vulncheck runs govulncheck over the module and says which
// vulnerability database it asked and how old that one is.
//
// The public database is asked first. Where it can't be reached (a build machine
// without a way out, an outage) the check isn't skipped: the same reports come
// as data in the Go module golang.org/x/vulndb, pinned here by version and
// checksum, and are laid out as a local database in the layout that
// govulncheck's database protocol documents. A pinned database knows nothing of
// what was reported after its date, so the choice and the date are printed
// before the result, and a warning from the sixtieth day on.
//
// If neither database can be had, the command fails. It exits with
// govulncheck's own code: 0 for nothing found, 3 for a finding, otherwise 1.
//
// The standard library is part of what is shipped, so it is looked at in the
// release that builds the shipped programs (-toolchain), not in whatever a
// developer or a build machine happens to have installed.
//
// # Moving the pin
//
// Run "go list -m golang.org/x/vulndb@latest", put the version into
// pinnedVersion, run the command with -pinned, and copy the checksum from its
// complaint into pinnedSum once you have compared it with the checksum database
// (go mod download does that by itself unless it was told not to).
package main
