package relay

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooler is what a connection pooler does, in little: in transaction mode a
// client has a backend only from the first statement of a transaction to its
// end, in session mode until it goes.
type pooler struct {
	t       testing.TB
	dsn     string
	session bool

	mu   sync.Mutex
	idle []*pgconn.HijackedConn // the last one in is the first one out
	busy int                    // so many come back just before another client's
}

func startPooler(t testing.TB, dsn string, session bool) (addr string) {
	t.Helper()
	return (&pooler{t: t, dsn: dsn, session: session}).start()
}

func (p *pooler) start() (addr string) {
	t := p.t
	t.Helper()
	ear, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	t.Cleanup(func() {
		_ = ear.Close()
		clients.Wait()
		for _, s := range p.idle {
			_ = s.Conn.Close()
		}
	})
	clients.Add(1)
	go func() {
		defer clients.Done()
		for {
			c, err := ear.Accept()
			if err != nil {
				return
			}
			clients.Add(1)
			go func() {
				defer clients.Done()
				p.serve(c)
				_ = c.Close()
			}()
		}
	}()
	return ear.Addr().String()
}

func (p *pooler) take() (*pgconn.HijackedConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return s, nil
	}
	c, err := pgconn.Connect(bg, p.dsn)
	if err != nil {
		return nil, err
	}
	return c.Hijack()
}

func (p *pooler) serve(c net.Conn) {
	client := pgproto3.NewBackend(c, c)
	for {
		m, err := client.ReceiveStartupMessage()
		if err != nil {
			return
		}
		if _, encrypted := m.(*pgproto3.SSLRequest); encrypted {
			if _, err := c.Write([]byte{'N'}); err != nil {
				return
			}
			continue
		}
		break
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15"})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 4242, SecretKey: []byte{1, 2, 3, 4}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	var server *pgconn.HijackedConn
	defer func() {
		if server != nil {
			_ = server.Conn.Close()
		}
	}()
	for {
		m, err := client.Receive()
		if err != nil {
			return
		}
		if _, bye := m.(*pgproto3.Terminate); bye {
			return
		}
		if server == nil {
			if server, err = p.take(); err != nil {
				p.t.Error(err)
				return
			}
		}
		server.Frontend.Send(m)
		switch m.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
		default:
			continue
		}
		if server.Frontend.Flush() != nil {
			return
		}
		for {
			answer, err := server.Frontend.Receive()
			if err != nil {
				return
			}
			client.Send(answer)
			if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
				if client.Flush() != nil {
					return
				}
				if ready.TxStatus == 'I' && !p.session {
					p.mu.Lock()
					p.idle = append(p.idle, server)
					if n := len(p.idle); n > 1 && p.busy > 0 {
						p.busy--
						p.idle[n-2], p.idle[n-1] = p.idle[n-1], p.idle[n-2]
					}
					p.mu.Unlock()
					server = nil
				}
				break
			}
		}
	}
}

// untouched looks at every backend that the pooler has: other clients get them next.
func untouched(t testing.TB, addr, database string) {
	t.Helper()
	backends := map[uint32]bool{}
	for range 10 { // each holds one
		conn, err := pgx.Connect(bg, "postgres://postgres@"+addr+"/"+database+"?sslmode=disable&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(bg) })
		tx, err := conn.Begin(bg)
		if err != nil {
			t.Fatal(err)
		}
		var pid uint32
		var set, listens string
		err = tx.QueryRow(bg, `select pg_backend_pid(), coalesce((select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
			where source = 'session' and name in ('enable_seqscan', 'jit', 'plan_cache_mode', 'statement_timeout', 'idle_session_timeout', 'default_transaction_isolation')), ''),
			coalesce((select string_agg(c, ' ') from pg_listening_channels() c), '')`).Scan(&pid, &set, &listens)
		if err != nil {
			t.Fatal(err)
		}
		backends[pid] = true
		if set != "" || listens != "" {
			t.Errorf("backend %d was left with %q, listening to %q", pid, set, listens)
		}
	}
	if len(backends) != 10 {
		t.Errorf("%d backends, each of 10 sessions should have one", len(backends))
	}
}

func TestAPoolerInTransactionModeIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	for _, session := range []bool{false, true} {
		pool, kafka := fresh(t, "a")
		cfg := pool.Config()
		addr := startPooler(t, cfg.ConnString(), session)
		through, err := pgxpool.New(bg, "postgres://postgres@"+addr+"/"+cfg.ConnConfig.Database+"?sslmode=disable&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(through.Close)
		if !session {
			err := runFor(t, through, kafka, quick())
			var pe *PoolerError
			if !errors.As(err, &pe) {
				t.Errorf("Run gives %v", err)
			}
			t.Log(err)
			if _, err := Republish(bg, through, kafka, RepublishConfig{Who: "me", Key: "k"}); !errors.As(err, &pe) {
				t.Errorf("Republish gives %v", err)
			}
			if _, err := Follow(bg, through, followed("a slot")); !errors.As(err, &pe) {
				t.Errorf("Follow gives %v", err)
			}
			untouched(t, addr, cfg.ConnConfig.Database)
			continue
		}
		r := startRelay(t, through, kafka, quick())
		newProducer(t, pool, "k").publish("a", "x")
		eventually(t, "in session mode it is accepted", func() bool { return kafka.has("a", "x") })
		r.end()
	}
}

// Another client has given its backend back in between, so the pooler gives that one
// to the second session, and the first one its own again, as often as it is tried.
func TestAPoolerWithOtherClientsIsRefusedToo(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	cfg := pool.Config()
	p := &pooler{t: t, dsn: cfg.ConnString()}
	through := "postgres://postgres@" + p.start() + "/" + cfg.ConnConfig.Database + "?sslmode=disable&default_query_exec_mode=exec"
	var conns [2]*pgx.Conn
	var open [2]pgx.Tx
	for i := range conns { // each has a backend, which is idle then
		var err error
		if conns[i], err = pgx.Connect(bg, through); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conns[i].Close(bg) })
		if open[i], err = conns[i].Begin(bg); err != nil {
			t.Fatal(err)
		}
	}
	for _, tx := range open {
		if err := tx.Rollback(bg); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are idle", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = 1
		return len(p.idle) == 2
	})
	var pe *PoolerError
	if pid, err := pinned(bg, conns[0], conns[1]); !errors.As(err, &pe) {
		t.Errorf("the session stays with backend %d: %v", pid, err)
	}
}
