package pgpooler

import (
	"net"

	"github.com/jackc/pgx/v5/pgproto3"
)

// client is one connection to the pooler.
type client struct {
	p     *Pooler
	conn  net.Conn
	proto *pgproto3.Backend
	has   *backend // for the transaction that runs; nil between two. Set under the pooler's mu
}

// welcome answers the start of a connection.
func (c *client) welcome(number uint32) error {
	if err := c.p.take(c); err != nil {
		return err
	}
	parameters := c.has.conn.ParameterStatuses
	c.p.giveBack(c, false)
	c.proto.Send(&pgproto3.AuthenticationOk{})
	for name, value := range parameters {
		c.proto.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	c.proto.Send(&pgproto3.BackendKeyData{ProcessID: number, SecretKey: []byte{0, 0, 0, 1}})
	c.proto.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return c.proto.Flush()
}

// run carries one exchange after the other, up to Sync, to a backend and back.
// What is in the pipeline behind it waits in the connection.
func (c *client) run() error {
	defer func() {
		if c.has != nil {
			c.p.giveBack(c, true)
		}
	}()
	for {
		bye, err := c.request()
		if err != nil || bye {
			return err
		}
		if err := c.answer(); err != nil {
			return err
		}
	}
}

// request passes on what the client sends, to the end of the exchange.
func (c *client) request() (bye bool, err error) {
	for {
		message, err := c.proto.Receive()
		if err != nil {
			return false, err
		}
		if _, bye := message.(*pgproto3.Terminate); bye {
			return true, nil
		}
		if c.has == nil {
			if err := c.p.take(c); err != nil {
				return false, err
			}
		}
		c.has.conn.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Sync, *pgproto3.Query, *pgproto3.CopyDone, *pgproto3.CopyFail:
			return false, c.has.conn.Frontend.Flush()
		case *pgproto3.CopyData: // as much as there may be
			if err := c.has.conn.Frontend.Flush(); err != nil {
				return false, err
			}
		}
	}
}

// answer passes on what the backend sends. The exchange goes on where it asks
// for rows to copy.
func (c *client) answer() error {
	for {
		message, err := c.has.conn.Frontend.Receive()
		if err != nil {
			return err
		}
		c.proto.Send(message)
		switch m := message.(type) {
		case *pgproto3.CopyInResponse:
			return c.proto.Flush()
		case *pgproto3.ReadyForQuery:
			if m.TxStatus == 'I' {
				c.p.giveBack(c, false) // before the client is told: it may be the next in line
			}
			return c.proto.Flush()
		}
	}
}
