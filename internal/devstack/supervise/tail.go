package supervise

import (
	"fmt"
	"os"
	"strings"
)

// Tail returns the end of a log, for an error message.
func Tail(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return strings.TrimSpace(string(content[max(0, len(content)-3000):]))
}
