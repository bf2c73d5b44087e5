package schema

import "testing"

// SetLevel makes this library one that knows part's migrations up to level,
// until the test ends.
func SetLevel(t *testing.T, part Part, level int) {
	before := levels[part]
	levels[part] = level
	t.Cleanup(func() { levels[part] = before })
}
