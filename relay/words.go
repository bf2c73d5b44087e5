package relay

import (
	"fmt"
	"regexp"
	"strings"
)

// count says how many there are of something: "1 partition", "3 partitions".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// The database's functions, which are migrated and not edited, put a number into
// a sentence as it is.
var (
	oneOf   = regexp.MustCompile(`\b1 (partition|record)s\b`)
	thereIs = regexp.MustCompile(`\bthere are 1\b`)
)

// singular mends a sentence of the database's about one of something.
func singular(sentence string) string {
	return thereIs.ReplaceAllString(oneOf.ReplaceAllString(sentence, "1 $1"), "there is 1")
}

// storable is a text as the database takes it: in UTF-8, and without NUL. What a
// broker says can be any bytes, and must not keep the cursor from being stored.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
