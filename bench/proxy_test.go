package main

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestTheProxyHoldsAnswersBackAndNothingElse(t *testing.T) {
	broker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	go func() {
		for {
			c, err := broker.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	p, err := newSlowProxy()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.to(broker.Addr().String())
	const delay = 200 * time.Millisecond
	p.setDelay(delay)
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Ten questions at once have their answers after one delay, not after ten.
	began := time.Now()
	for i := range 10 {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 10)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if int(b) != i {
			t.Fatalf("out of order: %v", got)
		}
	}
	if took := time.Since(began); took < delay {
		t.Errorf("the answers came after %v", took)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(got); err == nil {
		t.Error("a connection survives its proxy")
	}
}
