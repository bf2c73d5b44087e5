package consumer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// markSQL looks whether this is the transaction that was begun: else it divides by
// zero, which is how plain SQL has the COMMIT behind it roll back instead.
const markSQL = `1 / (coalesce(current_setting('fenceline.batch', true), '') = $1)::int`

// wakefulSQL makes COMMIT wait for its disk: a consumer whose commit was
// acknowledged and is then lost in a crash would find Kafka's offset ahead of it.
// Only off and local are raised: remote_apply stays what it is.
const wakefulSQL = `set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') then 'on' else current_setting('synchronous_commit') end, true)`

// sealSQL comes before COMMIT, and in the same round trip.
const sealSQL = `
select ` + markSQL + `,
       ` + wakefulSQL

// endSQL is all that is left to do at the end of a small batch that has gone as
// most do: the guards move, the offset is stored, and the transaction is sealed. A
// statement has a cost of its own, and for an event that comes alone that is most of
// what there is. move is one that moves guards, by parameters $1 to $4.
//
// COMMIT is on its way behind it, so it looks for itself whether all guards were
// where they were locked; where one wasn't, what isn't a number is read as one. The
// mark is looked at first: in another transaction the guards may be anywhere.
func endSQL(move string) string {
	return `
with moved as (` + move + `
returning 1), reached as (` + numberedFrom(7, offsetReadSQL) + ` as overflow)
select ` + numberedFrom(5, markSQL) + `,
       (case when (select count(*) from moved) = $6::int8 then '1' else 'guards have moved' end)::int,
       ` + wakefulSQL + `,
       (select overflow from reached)`
}

var parameter = regexp.MustCompile(`\$\d+`)

// numberedFrom gives a statement's parameters other numbers: $1 becomes $first.
func numberedFrom(first int, sql string) string {
	return parameter.ReplaceAllStringFunc(sql, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		return "$" + strconv.Itoa(n-1+first)
	})
}

const (
	divisionByZero = "22012"
	notANumber     = "22P02"
)

// raised says that a statement has found what it looks at otherwise.
func raised(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// toStore is what a transaction has read of a partition, to be written with its end.
type toStore struct {
	Read
	results []Result
	out     *Progress
}

// commit sends what is left to be written and COMMIT: in one round trip, unless
// something is to be looked at in between. committing says that an error is
// COMMIT's.
func (p *partition) commit(tx *ownTx, end *last) (committing bool, err error) {
	ending, cancel := p.ending()
	defer cancel()
	sealed := false
	p.queueEnd(tx, end, &sealed)
	committed := func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	}
	if !end.look {
		end.Queue("commit").Exec(committed)
	}
	err = tx.send(ending, &end.Batch).Close()
	if err != nil && !sealed {
		err = fmt.Errorf("consumer: moving the guards and storing the offset: %w", err)
	}
	if err == nil && end.look {
		var tag pgconn.CommandTag
		if tag, err = tx.conn.Exec(ending, "commit"); err == nil {
			err = committed(tag)
		}
	}
	if err == nil {
		tx.closed(ending)
	}
	return sealed, err
}

// queueEnd queues what comes before COMMIT: as one statement where it can be.
func (p *partition) queueEnd(tx *ownTx, end *last, sealed *bool) {
	m, read := &end.moved, end.read
	if n := len(m.tid); n > 0 && read != nil && !anyUnstored(read.results) {
		args := []any{m.tid, m.epoch, m.token, m.seq, tx.mark, n}
		sql := p.offsets.end
		if n == 1 {
			sql = p.offsets.endOne
			args = []any{m.tid[0], m.epoch[0], m.token[0], m.seq[0], tx.mark, n}
		}
		end.Queue(sql, append(args, p.offsets.readArgs(read.Read, nil, nil)...)...).QueryRow(func(row pgx.Row) error {
			var overflow int64
			switch err := row.Scan(nil, nil, nil, &overflow); {
			case raised(err, divisionByZero):
				return errEnded
			case raised(err, notANumber):
				return fmt.Errorf("%w (fewer than %d are)", errMoved, n)
			case err != nil:
				return err
			}
			*sealed, *read.out = true, progress(read.Read, overflow)
			return nil
		})
		return
	}
	if n := len(m.tid); n > 0 {
		end.look = true
		end.Queue(p.guard.sql.advance, m.tid, m.epoch, m.token, m.seq).Exec(allOf(n))
	}
	if read != nil {
		p.offsets.queueRead(&end.Batch, read.Read, read.results, read.out)
	}
	end.Queue(sealSQL, tx.mark).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil, nil)
		if raised(err, divisionByZero) {
			return errEnded
		}
		*sealed = err == nil
		return err
	})
}
