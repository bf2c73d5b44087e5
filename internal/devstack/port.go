package devstack

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort finds a free TCP port on 127.0.0.1, below the range from which the system takes the local ends of outgoing
// connections, so that a server can come back on it later. Another process may still take it first: whoever listens on
// it must be ready to ask for another.
func FreePort() (int, error) {
	const first, last = 10240, 32767
	var err error
	for range 100 {
		port := first + rand.IntN(last-first+1)
		var l net.Listener
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("devstack: no free port between %d and %d on 127.0.0.1: %w", first, last, err)
}
