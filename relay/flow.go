package relay

// flow is a cursor twice: how far has been read, and how far of that is done.
// The main flow and each fork are one. Everything here is guarded by the
// session's mutex, except that only the reading goroutine moves read.
type flow struct {
	shards shardSet // whose rows it reads
	read   cursor
	acked  cursor
	// pages were read and are not all done, in order.
	pages []*pending
	// ahead is the number of rows in pages.
	ahead int
	// beside: it reads what the main flow has passed by, see resume.go.
	beside bool
}

// pending is a page whose rows are on their way. A row is done when Kafka has
// acknowledged it, or when something durable, a hold or a fork, takes care of
// it; this is recorded in the same transaction as the cursor that passes it.
type pending struct {
	flow          *flow
	pos           []int64
	done          []bool
	next          int // all before it are done
	during, after cursor
	dead          bool // the flow went back; nothing that becomes done here counts
	passed        bool // all of it is done, and of all before it
	until         int  // the session ends: rows before it are still sent, see closing.go
}

// add takes note of what was read. The caller must mark the rows done.
func (f *flow) add(ch chunk) *pending {
	f.read = ch.after
	if len(ch.rows) == 0 {
		// Nothing to wait for but what is already on its way.
		if n := len(f.pages); n > 0 {
			f.pages[n-1].after = ch.after
		} else {
			f.acked = ch.after
		}
		return nil
	}
	p := &pending{flow: f, pos: make([]int64, len(ch.rows)), done: make([]bool, len(ch.rows)), during: ch.during, after: ch.after}
	for i := range ch.rows {
		p.pos[i] = ch.rows[i].Pos
	}
	f.pages = append(f.pages, p)
	f.ahead += len(p.pos)
	return p
}

// mark says that row i of p is done, and moves the flow's acked cursor as far
// as there is no gap. It returns false if the row was done before.
func (p *pending) mark(i int) bool {
	if p.done[i] {
		return false
	}
	p.done[i] = true
	if p.dead {
		return true
	}
	p.flow.advance()
	return true
}

func (f *flow) advance() {
	for len(f.pages) > 0 {
		head := f.pages[0]
		from := head.next
		for head.next < len(head.done) && head.done[head.next] {
			head.next++
		}
		if head.next < len(head.done) {
			if head.next > from {
				f.acked = head.during.at(head.pos[head.next-1])
			}
			return
		}
		f.acked = head.after
		head.passed = true
		f.pages[0] = nil
		f.pages = f.pages[1:]
		f.ahead -= len(head.pos)
	}
}

// rewind forgets what is on its way: it will be read again.
func (f *flow) rewind() {
	for _, p := range f.pages {
		p.dead = true
	}
	f.pages, f.ahead = nil, 0
	f.read = f.acked
}

// last is the page that was read last and is on its way, nil if there is none.
func (f *flow) last() *pending {
	if len(f.pages) == 0 {
		return nil
	}
	return f.pages[len(f.pages)-1]
}
