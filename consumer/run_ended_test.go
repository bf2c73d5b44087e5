package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/sqltext"
)

// A transaction that was ended and another one begun in its place looks like the
// first one to everybody who looks at its status only.
func TestATransactionThatAHandlerEndsIsNoticedHoweverItDoesIt(t *testing.T) {
	ignore := func(any, error) error { return nil } // handlers that eat the error, too
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"commit": func(ctx context.Context, tx pgx.Tx) error { return ignore(tx.Exec(ctx, "commit")) },
		"commit behind comment": func(ctx context.Context, tx pgx.Tx) error {
			return ignore(tx.Exec(ctx, "-- done\n /* x */ COMMIT AND CHAIN"))
		},
		"rollback and chain": func(ctx context.Context, tx pgx.Tx) error { return ignore(tx.Exec(ctx, "rollback and chain")) },
		"a query": func(ctx context.Context, tx pgx.Tx) error {
			r, err := tx.Query(ctx, "abort")
			r.Close()
			return ignore(nil, err)
		},
		"a row": func(ctx context.Context, tx pgx.Tx) error {
			var n int
			return ignore(nil, tx.QueryRow(ctx, "end").Scan(&n))
		},
		"a batch": func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("select 1")
			b.Queue("prepare transaction 'x'")
			return ignore(nil, tx.SendBatch(ctx, &b).Close())
		},
		"several statements in one": func(ctx context.Context, tx pgx.Tx) error {
			return ignore(tx.Exec(ctx, "select 1; rollback and chain"))
		},
		"the connection itself": func(ctx context.Context, tx pgx.Tx) error {
			return ignore(tx.Conn().Exec(ctx, "rollback and chain"))
		},
		"the connection itself, without another": func(ctx context.Context, tx pgx.Tx) error {
			return ignore(tx.Conn().Exec(ctx, "rollback"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			for seq := int64(1); seq <= 4; seq++ {
				log.publish(event("t", "a", seq), event("t", "b", seq))
			}
			b.run(log.source(), b.config(), b.failing("a", 3, end))
			b.eventually("everything is read", func() bool { return log.offset() == 8 })
			b.want("b", effects("b", 1, 4)...)
			b.want("a", effects("a", 1, 2)...)
			if got := b.one(`select string_agg(seq || ':' || reason, ' ' order by seq) from fenceline.parked`); got != "3:failing 4:gap" {
				t.Errorf("parked: %s", got)
			}
			if got := b.one(`select error from fenceline.parked where seq = 3`); !strings.Contains(got, "neither commit nor roll back") {
				t.Errorf("the error that is kept: %q", got)
			}
		})
	}
}

// Guards that others had committed before are where they were, also for a
// transaction that doesn't have them; and a batch of many has a seal of its own.
func TestATransactionThatAHandlerEndsIsNoticedAtTheEndOfALargeBatch(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const keys = 40
	for seq := range int64(2) {
		for k := range keys {
			log.publish(event("t", fmt.Sprint("k", k), seq+1))
		}
		if seq == 0 {
			b.upTo(log, b.config(), keys)
		}
	}
	b.run(log.source(), b.config(), b.failing("k7", 2, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, "rollback and chain")
		return err
	}))
	b.eventually("everything is read", func() bool { return log.offset() == 2*keys })
	b.want("k7", "k7/1")
	if got := b.one("select count(*) || ' ' || count(distinct (key, seq)) from applied where key <> 'k7'"); got != "78 78" {
		t.Errorf("effects of the other keys, and different ones: %s", got)
	}
	if got := b.one(`select string_agg(key || ':' || reason, ' ') from fenceline.parked`); got != "k7:failing" {
		t.Errorf("parked: %s", got)
	}
}

func TestSavepointsAreTheHandlersOwn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	b.run(log.source(), b.config(), b.failing("a", 2, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{"savepoint s", "insert into applied (key, seq) values ('x', 1)", "rollback to savepoint s", "rollback work to s", "release s"} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		return nested.Rollback(ctx)
	}))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.want("", effects("a", 1, 3)...)
}

func TestTheFirstWordTellsWhetherAStatementEndsTheTransaction(t *testing.T) {
	for sql, want := range map[string]bool{
		"": false, ";": false, "--": false, "/*": false, "select 1": false, "endow": false, "committed": false, "end_all()": false,
		"rollback to s": false, "ROLLBACK WORK TO SAVEPOINT s": false, "prepare x as select 1": false, "insert into commit values (1)": false,
		"commit": true, "  Commit;": true, "; commit": true, "END": true, "abort": true, "begin": true, "start transaction": true,
		"rollback": true, "rollback;": true, "rollback transaction": true, "rollback and chain": true, "rollback prepared 'x'": true,
		"prepare transaction 'x'": true, "/* a */ -- b\ncommit prepared 'x'": true,
	} {
		if got := sqltext.EndsTransaction(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}
