package kafkapub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/fenceline/fenceline/internal/kafkasec"
)

// reachVersion of a metadata request has a way to say that no topic is asked
// for, and that none may be created.
const reachVersion = 4

// Reach sees whether a broker of Config.Brokers answers this client: over TLS
// and logged in, as configured. It asks for nothing and creates nothing, so it
// needs no right, and no topic that exists. One broker that answers is enough;
// the error is that of the last one that was tried, else. It returns within
// Config.Timeout.
func (p *Publisher) Reach(ctx context.Context) error {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	errs := p.anyOf(ctx, func(ctx context.Context, address string) error {
		// Not a request that is answered before the login, such as for the
		// versions of the protocol: that one a broker answers anybody.
		req := &metadata.Request{TopicNames: []string{}} // not nil, which is all of them
		_, err := p.ask(ctx, address, reachVersion, req)
		return err
	})
	if errs != nil {
		return fmt.Errorf("kafkapub: no broker answers: %w", cause(ctx, errors.Join(errs[len(errs)-1], ctx.Err())))
	}
	return nil
}

// anyOf asks one broker after the other until one answers, nil then. Each has its
// part of the time that is left: one that takes connections and says nothing must
// not have all of it.
func (p *Publisher) anyOf(ctx context.Context, ask func(ctx context.Context, address string) error) (errs []error) {
	for i, address := range p.config.Brokers {
		part := ctx
		if end, bounded := ctx.Deadline(); bounded {
			var cancel context.CancelFunc
			part, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(p.config.Brokers)-i))
			defer cancel()
		}
		err := ask(part, address)
		if err == nil {
			return nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return errs
}

// ask makes one request of one broker on a connection of its own, for what
// kafka-go's client answers from memory or has no call for.
func (p *Publisher) ask(ctx context.Context, address string, version int16, req protocol.Message) (protocol.Message, error) {
	conn, err := p.authenticated(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // it was only asked
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	return protocol.RoundTrip(conn, version, 1, p.config.ClientID, req)
}

// authenticated connects and logs in, and gives the connection itself. What
// kafka-go makes of it is only used to log in.
func (p *Publisher) authenticated(ctx context.Context, address string) (net.Conn, error) {
	var conn net.Conn
	d := kafka.Dialer{ClientID: p.config.ClientID, Timeout: connectTimeout, SASLMechanism: p.config.SASL,
		DialFunc: func(ctx context.Context, network, address string) (net.Conn, error) {
			plain, err := p.dialer.dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if p.config.TLS == nil {
				conn = kafkasec.Heard(plain)
				return conn, nil
			}
			c := p.config.TLS.Clone()
			if c.ServerName == "" {
				c.ServerName, _, _ = net.SplitHostPort(address)
			}
			encrypted := tls.Client(plain, c)
			if err := encrypted.HandshakeContext(ctx); err != nil {
				_ = plain.Close()
				return nil, err
			}
			conn = kafkasec.Heard(encrypted)
			return conn, nil
		}}
	if _, err := d.DialContext(ctx, "tcp", address); err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return conn, nil
}
