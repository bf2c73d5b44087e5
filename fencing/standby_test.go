package fencing_test

import (
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

// Commits wait while a synchronous standby is restarted; who holds a lease still holds
// it when they go on.
func TestLeasesAreKeptWhileCommitsWaitForTheStandby(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	w.exec("alter system set synchronous_standby_names = 'nobody'")
	w.exec("select pg_reload_conf()")
	w.waitForStandbys()
	before := fencing.Trusted(lease)
	fencing.RenewNow(a.Fences, lease)
	if !fencing.Trusted(lease).After(before) {
		t.Error("the renewal waited for a standby that never comes")
	}
	w.exec("alter system reset synchronous_standby_names")
	w.exec("select pg_reload_conf()")
}
