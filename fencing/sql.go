package fencing

import "github.com/fenceline/fenceline/internal/schema"

// The statements of this package are calls of the functions of
// migrations/producer: what carries correctness, each lock and each predicate
// with its reason, is there. A producer's login has no right but to call them.
type statements struct {
	begin, commit string

	acquire, renew, release, enter, setResult, advance, settings string
}

func newStatements(name string, system bool) statements {
	x := func(template string) string { return schema.Expand(template, name) }
	s := statements{
		// Whatever the pool's default is: the check needs READ COMMITTED.
		begin:     "begin isolation level read committed, read write",
		commit:    "commit",
		acquire:   x("select won, epoch, token, holder, expires_at, remaining from @schema@.acquire($1, $2, $3, $4, $5)"),
		renew:     x("select key, epoch, token, ok from @schema@.renew($1, $2, $3, $4)"),
		release:   x("select @schema@.release($1, $2, $3)"),
		enter:     x("select @schema@.enter($1, $2, $3, $4, $5, $6, $7)"),
		setResult: x("select @schema@.set_result($1, $2, $3, $4, $5)"),
		advance:   x("select epoch, token from @schema@.advance($1, $2)"),
		// What a promise rests on and an unprivileged login can read.
		settings: x(`select current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()`),
	}
	if system {
		s.acquire = x("select won, epoch, token, holder, expires_at, remaining from @schema@.relay_acquire($1, $2, $3, $4, $5)")
		s.renew = x("select key, epoch, token, ok from @schema@.relay_renew($1, $2, $3, $4)")
		s.release = x("select @schema@.relay_release($1, $2, $3)")
	}
	return s
}
