package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A key's transactions are a serial chain, and what the process does between
// them (reading an answer, waking its callers, collecting and encoding the next
// commits, the network) would be time in which the chain stands still. So the
// next transaction is sent while the one before is under way, on the same
// connection: the server reads its BEGIN when the COMMIT before it is done, and
// no lock changes hands between two sessions. It is what libpq calls pipeline
// mode, with a synchronization point behind each COMMIT.
//
// Each is a transaction of its own, with its gate, its flush and its answer.
// When one of them fails, its session is in a failed transaction (25P02), and
// refuses the BEGIN of the one behind: nothing of that has happened, and it goes
// again. When the connection is lost, all that was sent and not answered has an
// unknown outcome: a server executes what it has received.
const (
	// ahead is how many transactions of a lane are under way at most. The second
	// fills the time between two; a third has nothing to fill, and one more unknown
	// outcome when the connection is lost.
	ahead = 2
	// pipeMost is how many transactions follow each other before the connection goes
	// back to the pool, and pipeTime after what time none is sent any more: in a small
	// pool others wait for it, the renewal of leases too.
	pipeMost = 32
	pipeTime = 50 * time.Millisecond
	// behindMost is how large what is sent behind another transaction may be, in bytes.
	// Writing more can wait for the server to read, which reads nothing before the
	// other one is done, whose answer nobody reads meanwhile.
	behindMost = 64 << 10
	// preparedMost bounds the statements that a connection keeps for its pipes, and
	// textsMost how many different ones a transaction may have for which some are to be
	// prepared: none of its own must have to go for another.
	preparedMost = 256
	textsMost    = preparedMost / 2
)

// pipes says whether transactions can be pipelined on the pool's connections.
// pgx's own batches wait for their answers, so a pipe prepares and encodes by
// itself; where pgx is configured to do otherwise (a pooler that can't carry
// prepared statements, a tracer that is to be told of each batch), it does. And
// hooks of the pool may make a connection ready for the one whose context it is
// taken with, or clean it behind him: then each commit takes one for itself.
func pipes(pool *pgxpool.Pool) bool {
	cfg := pool.Config()
	if cfg.PrepareConn != nil || cfg.BeforeAcquire != nil || cfg.AfterRelease != nil { //nolint:staticcheck // somebody may have set the deprecated one
		return false
	}
	c := cfg.ConnConfig
	return c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity > 0 && c.Tracer == nil
}

// pipe is a connection on which transactions follow each other. It is used by one
// goroutine.
type pipe struct {
	f    *Fences
	conn *pgx.Conn

	began  time.Time
	line   *pgconn.Pipeline // nil while nothing was sent
	ctx    context.Context
	cancel context.CancelCauseFunc
	clock  *time.Timer // ends ctx when the transaction in front is not answered in time

	flying []*packet // sent and not answered, the oldest first
	sent   int       // how many in all
	broken bool      // one was not committed: nothing may be sent behind it
	lost   error     // no answer is read any more
	why    error     // a statement could not be prepared, perhaps since the connection was lost
	args   []pgx.ExtendedQueryBuilder
}

// newPipe makes a pipe, to be closed by the caller.
func newPipe(ctx context.Context, f *Fences, conn *pgx.Conn) *pipe {
	p := &pipe{f: f, conn: conn, began: time.Now()}
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // of ctx only the values are used, as in send
	return p
}

func (p *pipe) busy() bool { return len(p.flying) > 0 }

// full says that nothing more is to be sent before an answer is here.
func (p *pipe) full() bool {
	return len(p.flying) >= ahead || p.sent >= pipeMost || p.sent > 0 && time.Since(p.began) > p.f.lent || p.broken
}

// send sends a transaction behind what is under way. If it does not, nothing of
// it was sent: it needs something of the connection first (then it goes when
// nothing is under way), or it can't go through a pipe. Everything is encoded
// before anything is sent, so that what goes wrong with one transaction's
// arguments, a panic too, harms none that is under way.
func (p *pipe) send(pk *packet) bool {
	if p.broken || p.lost != nil || p.ctx.Err() != nil || p.conn.IsClosed() {
		return false
	}
	texts, args, ok := p.texts(pk)
	if !ok {
		return false
	}
	plans, ok := p.plans(texts)
	if !ok {
		return false
	}
	if n := len(texts); len(p.args) < n {
		p.args = make([]pgx.ExtendedQueryBuilder, n)
	}
	size := 0
	for i, plan := range plans {
		if err := p.args[i].Build(p.conn.TypeMap(), plan, args[i]); err != nil {
			return false
		}
		for _, v := range p.args[i].ParamValues {
			size += len(v)
		}
	}
	if p.busy() && size > behindMost {
		return false
	}
	pk.texts, pk.behind = texts, p.sent > 0
	switch {
	case p.line == nil:
		p.clock = time.AfterFunc(p.f.cfg.CommitTimeout, func() { p.cancel(context.DeadlineExceeded) })
		p.line = p.conn.PgConn().StartPipeline(p.ctx)
	case !p.busy():
		p.clock.Reset(p.f.cfg.CommitTimeout)
	}
	for i, plan := range plans {
		a := &p.args[i]
		p.line.SendQueryPrepared(plan.Name, a.ParamValues, a.ParamFormats, a.ResultFormats)
	}
	err := p.line.Sync()
	pk.unsent = err != nil && !p.busy() && pgconn.SafeToRetry(err)
	p.flying = append(p.flying, pk)
	p.sent++
	return true
}

// texts are the statements as pgx would send them, with BEGIN and COMMIT.
func (p *pipe) texts(pk *packet) (texts []string, args [][]any, ok bool) {
	for _, s := range pk.statements {
		sql, arg := s.sql, s.args
		for len(arg) > 0 {
			r, is := arg[0].(pgx.QueryRewriter)
			if !is {
				break
			}
			var err error
			if sql, arg, err = r.RewriteQuery(p.ctx, p.conn, sql, arg[1:]); err != nil {
				return nil, nil, false
			}
		}
		texts, args = append(texts, sql), append(args, arg)
	}
	return append(texts, p.f.sql.commit), append(args, nil), true
}

// receive reads the answers of the transaction in front.
func (p *pipe) receive() outcome {
	pk := p.flying[0]
	forgetNotice(p.conn.PgConn())
	r := reading{ender: -1}
	err := p.read(pk, &r)
	p.flying = p.flying[1:]
	if p.ctx.Err() != nil && err != nil && !answeredByServer(err) {
		err = fmt.Errorf("no answer within %v: %w", p.f.cfg.CommitTimeout, context.Cause(p.ctx))
	}
	p.clock.Stop()
	if p.busy() { // whose time begins when nothing is before it any more
		p.clock.Reset(p.f.cfg.CommitTimeout)
	}
	o := r.outcome(p.conn, pk.statements, err, pk.unsent)
	if o.fate != committed && o.fate != notReplicatedFate {
		p.broken = true
	}
	p.f.announce(o, pk.statements, false)
	return o
}

// give gives up what is in front, not read to its end, and reads no further.
func (p *pipe) give(why error) {
	p.flying = p.flying[1:]
	p.lost = why
}

// closed says why the connection was closed with nothing under way.
func (p *pipe) closed() error {
	if p.why != nil {
		return p.why
	}
	return errClosed
}

// errClosed: the server has ended the connection, and has not said why.
var errClosed = errors.New("the connection was closed")

// read reads up to the synchronization point. Its error is the first one.
func (p *pipe) read(pk *packet, r *reading) (first error) {
	if p.lost != nil {
		return p.lost
	}
	for i := 0; ; {
		results, err := p.line.GetResults()
		switch results := results.(type) {
		case *pgconn.PipelineSync:
			return first
		case *pgconn.ResultReader:
			err = p.result(pk, i, results, r)
			i++
		case nil:
			if err == nil {
				err = errClosed
			}
		}
		if err == nil {
			continue
		}
		if first == nil {
			first = err
		}
		if p.conn.IsClosed() || !p.answered(err) {
			// Without the error itself, which says of this transaction what it says: the
			// server may have gone on with the next one.
			p.lost = errors.New("the connection was lost with the transaction before it: " + first.Error())
			return first
		}
	}
}

// answered says that the server has answered, so that more of its answers can follow.
func (p *pipe) answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !fatal(pg) || errors.Is(err, errRow)
}

// errRow: an answer is not what was asked for.
var errRow = errors.New("fencing: an answer of the database could not be read")

// result reads one statement's answer.
func (p *pipe) result(pk *packet, i int, results *pgconn.ResultReader, r *reading) error {
	if i < len(pk.statements) && pk.statements[i].read != nil {
		err := oneRow(pk.statements[i].read)(pgx.RowsFromResultReader(p.conn.TypeMap(), results))
		if err == nil {
			r.done++
		} else if _, closed := results.Close(); closed == nil { // it is ours
			err = errors.Join(errRow, err)
		}
		return err
	}
	tag, err := results.Close()
	if err != nil {
		return err
	}
	if i == len(pk.statements) {
		r.tag = tag.String()
		return nil
	}
	r.executed(i, tag)
	return nil
}

// close gives the connection back to its normal mode. Nothing may be under way.
func (p *pipe) close() {
	defer p.cancel(nil)
	if p.line == nil {
		return
	}
	if p.lost != nil { // an answer may still come, and would be taken for another one's
		ctx, cancel := context.WithTimeout(context.Background(), silence)
		defer cancel()
		_ = p.conn.Close(ctx)
	}
	p.pause()
}

// pause ends the pipeline, with nothing under way; the next transaction begins
// another.
func (p *pipe) pause() {
	if p.line == nil {
		return
	}
	p.clock.Stop()
	_ = p.line.Close()
	p.line = nil
}
