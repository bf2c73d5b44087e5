package kafkatest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// link is one client's connection and its own to the broker. Kafka answers the requests of a connection in their
// order, so a queue says which request an answer belongs to.
type link struct {
	proxy          *Proxy
	client, broker net.Conn

	mu    sync.Mutex
	asked []asked
}

type asked struct {
	key, version int16
	correlation  int32
	fault        *Fault // to happen to the answer
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.broker.Close()
}

// requests passes on what the client asks until the connection ends.
func (l *link) requests() error {
	for {
		frame, err := readFrame(l.client)
		if err != nil {
			return err
		}
		body := frame[4:]
		if len(body) < 10 {
			return fmt.Errorf("a request of %d bytes", len(body))
		}
		a := asked{
			key:         int16(binary.BigEndian.Uint16(body)),
			version:     int16(binary.BigEndian.Uint16(body[2:])),
			correlation: int32(binary.BigEndian.Uint32(body[4:])),
		}
		var request kmsg.Request
		faults := l.proxy.faultsFor(a.key)
		if len(faults) > 0 || a.key == kmsg.Produce.Int16() {
			if request, err = decodeRequest(a, body); err != nil {
				return err
			}
		}
		fault := hit(faults, request)
		if fault != nil {
			switch fault.Do {
			case LoseRequest:
				return nil
			case HoldRequest:
				<-fault.released
			case LoseAnswer, HoldAnswer:
				a.fault = fault
			}
		}
		if produce, ok := request.(*kmsg.ProduceRequest); !ok || produce.Acks != 0 {
			l.mu.Lock()
			l.asked = append(l.asked, a)
			l.mu.Unlock()
		}
		if _, err := l.broker.Write(frame); err != nil {
			return err
		}
	}
}

// answers passes on what the broker answers until the connection ends.
func (l *link) answers() error {
	for {
		frame, err := readFrame(l.broker)
		if err != nil {
			return err
		}
		l.mu.Lock()
		if len(l.asked) == 0 {
			l.mu.Unlock()
			return fmt.Errorf("an answer to nothing that was asked")
		}
		a := l.asked[0]
		l.asked = l.asked[1:]
		l.mu.Unlock()
		if len(frame) < 8 || int32(binary.BigEndian.Uint32(frame[4:])) != a.correlation {
			return fmt.Errorf("the answer isn't to the oldest request (key %d)", a.key)
		}
		if a.fault != nil {
			a.fault.answered()
			if a.fault.Do == LoseAnswer {
				return nil
			}
			<-a.fault.released
		}
		if frame, err = l.proxy.rewrite(a, frame); err != nil {
			return fmt.Errorf("answer to request key %d version %d: %w", a.key, a.version, err)
		}
		if _, err := l.client.Write(frame); err != nil {
			return err
		}
	}
}

// readFrame reads one message, its four bytes of length included.
func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 200<<20 {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	frame := make([]byte, 4+n)
	copy(frame, size[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

func decodeRequest(a asked, body []byte) (kmsg.Request, error) {
	request := kmsg.RequestForKey(a.key)
	if request == nil {
		return nil, fmt.Errorf("unknown request key %d", a.key)
	}
	request.SetVersion(a.version)
	rest := body[8:]
	if n := int16(binary.BigEndian.Uint16(rest)); n > 0 { // the client's id; -1 is none
		if len(rest) < 2+int(n) {
			return nil, fmt.Errorf("request key %d: its client id is cut off", a.key)
		}
		rest = rest[n:]
	}
	rest = rest[2:]
	if request.IsFlexible() {
		var err error
		if rest, err = skipTags(rest); err != nil {
			return nil, err
		}
	}
	if err := request.ReadFrom(rest); err != nil {
		return nil, fmt.Errorf("request key %d version %d: %w", a.key, a.version, err)
	}
	return request, nil
}

// skipTags skips the tagged fields of a header. No client or broker sends any there so far.
func skipTags(b []byte) ([]byte, error) {
	if len(b) == 0 || b[0] != 0 {
		return nil, fmt.Errorf("tagged fields in a header")
	}
	return b[1:], nil
}

// rewrite replaces the brokers' addresses in an answer.
func (p *Proxy) rewrite(a asked, frame []byte) ([]byte, error) {
	switch kmsg.Key(a.key) {
	case kmsg.Metadata, kmsg.FindCoordinator, kmsg.DescribeCluster:
	case kmsg.Produce: // names brokers, after a change of leader, since version 10
		if a.version < 10 {
			return frame, nil
		}
	case kmsg.Fetch: // the same since version 16
		if a.version < 16 {
			return frame, nil
		}
	default:
		return frame, nil
	}
	answer := kmsg.ResponseForKey(a.key)
	answer.SetVersion(a.version)
	header, rest := frame[4:8], frame[8:]
	if answer.IsFlexible() {
		var err error
		if rest, err = skipTags(rest); err != nil {
			return nil, err
		}
		header = frame[4:9]
	}
	if err := answer.ReadFrom(rest); err != nil {
		return nil, err
	}
	if err := p.replace(answer); err != nil {
		return nil, err
	}
	out := make([]byte, 4, len(frame)+64)
	out = append(out, header...)
	out = answer.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}

func (p *Proxy) replace(answer kmsg.Response) error {
	switch r := answer.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			if err := p.frontOf(&r.Brokers[i].Host, &r.Brokers[i].Port); err != nil {
				return err
			}
		}
	case *kmsg.FindCoordinatorResponse:
		if r.ErrorCode == 0 && r.Host != "" {
			if err := p.frontOf(&r.Host, &r.Port); err != nil {
				return err
			}
		}
		for i := range r.Coordinators {
			if c := &r.Coordinators[i]; c.ErrorCode == 0 {
				if err := p.frontOf(&c.Host, &c.Port); err != nil {
					return err
				}
			}
		}
	case *kmsg.DescribeClusterResponse:
		for i := range r.Brokers {
			if err := p.frontOf(&r.Brokers[i].Host, &r.Brokers[i].Port); err != nil {
				return err
			}
		}
	case *kmsg.ProduceResponse:
		for i := range r.Brokers {
			if err := p.frontOf(&r.Brokers[i].Host, &r.Brokers[i].Port); err != nil {
				return err
			}
		}
	case *kmsg.FetchResponse:
		for i := range r.Brokers {
			if err := p.frontOf(&r.Brokers[i].Host, &r.Brokers[i].Port); err != nil {
				return err
			}
		}
	}
	return nil
}
