package config

import "strings"

// matches gives the number of args that name spells out, 0 if it doesn't.
func matches(name string, args []string) int {
	words := strings.Fields(name)
	if len(words) > len(args) {
		return 0
	}
	for i, w := range words {
		if args[i] != w {
			return 0
		}
	}
	return len(words)
}
