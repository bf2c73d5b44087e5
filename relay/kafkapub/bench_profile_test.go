package kafkapub_test

import (
	"os"
	"runtime/pprof"
	"testing"
)

// profile writes a CPU profile until the test ends.
func profile(b *testing.B, file string) {
	f, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	})
}
