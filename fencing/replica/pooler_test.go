package replica_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// pooler is a pooler in transaction mode over several servers: after each
// transaction a client's next one goes to the next server. It asks for no
// password and knows one exchange, up to Sync, at a time.
func pooler(t *testing.T, dsns ...string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = serve(conn, dsns)
			}()
		}
	}()
	return "postgres://nobody@" + listener.Addr().String() + "/postgres?sslmode=disable&default_query_exec_mode=exec"
}

func serve(conn net.Conn, dsns []string) error {
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	var servers []*pgproto3.Frontend
	for _, dsn := range dsns {
		server, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		hijacked, err := server.Hijack()
		if err != nil {
			return err
		}
		defer func() { _ = hijacked.Conn.Close() }()
		servers = append(servers, hijacked.Frontend)
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for now := 0; ; {
		if err := client.Flush(); err != nil {
			return err
		}
		server := servers[now%len(servers)]
		for ended := false; !ended; {
			message, err := client.Receive()
			if err != nil {
				return err
			}
			switch message.(type) {
			case *pgproto3.Terminate:
				return nil
			case *pgproto3.Sync, *pgproto3.Query:
				ended = true
			}
			server.Send(message)
		}
		if err := server.Flush(); err != nil {
			return err
		}
		for ended := false; !ended; {
			message, err := server.Receive()
			if err != nil {
				return err
			}
			if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
				ended = true
				if ready.TxStatus == 'I' {
					now++
				}
			}
			client.Send(message)
		}
	}
}

func TestACheckOnOneServerSaysNothingOfAReadOnAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quick, paused := w.replica(nil), w.replica(nil)
	pool := pgtest.Connect(t, pooler(t, w.as(quick.Postgres, "postgres"), w.as(paused.Postgres, "postgres")))
	reader, err := replica.New(ctx, pgtest.Connect(t, w.as(w.server, "postgres")), []*pgxpool.Pool{pool}, w.config())
	w.ok(err)
	w.report(w.takeOver("k"), "old")
	w.ok(paused.CatchUp(ctx))
	w.ok(paused.PauseReplay(ctx))
	lease := w.takeOver("k")
	position := w.report(lease, "new")
	w.ok(quick.CatchUp(ctx))
	for range 2 { // the check on one, the read on the other, and the other way round
		text, result, err := body(reader, "k", position, replica.WaitThenPrimary(100*time.Millisecond))
		if err != nil || text != "new" || !result.Proven {
			t.Errorf("%q, %+v, %v", text, result, err)
		}
		text, result, err = body(reader, "k", position, replica.WaitThenPending(100*time.Millisecond))
		if err == nil && text != "new" || err != nil && !errors.Is(err, replica.ErrPending) {
			t.Errorf("%q, %+v, %v", text, result, err)
		}
		// The server that a transaction goes to is the next one's from here on.
		_, err = pool.Exec(ctx, "select 1")
		w.ok(err)
	}
}
