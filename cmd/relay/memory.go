package main

import (
	"os"
	"runtime/debug"
)

// memoryLimit is where the garbage collector begins to work harder: above what
// a relay needs at most with the default of relay.Config.MaxBytesInFlight (the
// events that are on their way, their encoded batches and what the Kafka client
// copies of those, each at most 8 MiB), so that it costs nothing but garbage.
const memoryLimit = 32 << 20

// limitMemory sets the limit unless the operator has set GOMEMLIMIT.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
