//go:build race

package consumer

const raceEnabled = true
