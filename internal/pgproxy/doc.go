// Package pgproxy is a TCP proxy in front of PostgreSQL that loses answers on
// purpose.
//
// The hardest outcome of a commit is the one whose answer does not arrive: the
// server has committed, the client sees a broken connection. It can't be
// produced by killing anything at the right moment, but a proxy that knows
// where COMMIT's answer is in the stream produces it each time:
//
//	proxy, err := pgproxy.Listen("127.0.0.1:5432")
//	pool, err := pgxpool.New(ctx, proxy.DSN(dsn))
//	dropped := proxy.DropNextCommitAnswer("order-17")
//	_, err = fences.Commit(ctx, …)      // fencing.ErrUnknownOutcome
//	<-dropped
//
// The proxy reads the frames of the protocol (version 3) in both directions and
// forwards them unchanged. It also freezes: connections stay open and nothing
// passes, as when a network drops packets.
//
// It speaks plain text only: encryption is refused to the client, which
// sslmode=disable or prefer accept.
package pgproxy
