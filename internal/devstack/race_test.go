//go:build race

package devstack

func init() { raceDetector = true }
