package config

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestASignalThatIsSentTwiceEndsNoStopHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, signal := context.WithCancel(t.Context())
		defer signal()
		var deaf atomic.Bool
		afterPatience(ctx, func() { deaf.Store(true) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if deaf.Load() {
			t.Error("the first signal would end the process")
		}
		signal()
		time.Sleep(patience - time.Millisecond)
		synctest.Wait()
		if deaf.Load() {
			t.Error("the same signal, sent once more, would end the process")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !deaf.Load() {
			t.Error("somebody who asks again is not heard")
		}
	})
}
