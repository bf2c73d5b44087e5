package fencing_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
)

// What a protected table costs, as the ratio of a commit that writes into one
// to a commit that writes into the same table unprotected. The two take turns,
// each right after the other, and the median of their ratios is reported: rates
// by themselves say more about the machine. The server acknowledges without
// waiting for its disk, which makes the commit as cheap and the share of the
// triggers as large as they can be.
//
//	go run ./internal/cmd/teststack -- go test -run - -bench Protected ./fencing
func BenchmarkProtected(b *testing.B) {
	w := newWorld(b)
	w.exec("create table public.guarded (like public.result); grant all on public.guarded to public")
	w.protect("key", "guarded")
	lease := w.worker("a").acquire("k")
	const insert = "insert into public.%s select 'k', n::text from generate_series(1, %d) n"
	for _, c := range []struct {
		name, sql string
		rows      int
	}{{"insert", insert, 1}, {"insert", insert, 100}, {"insert", insert, 10_000}, {"update", "update public.%[1]s set note = note || 'x' where ctid in (select ctid from public.%[1]s limit %[2]d)", 1}} {
		b.Run(fmt.Sprintf("%s/%d", c.name, c.rows), func(b *testing.B) {
			w.exec("truncate public.result")
			w.ok(second(fencing.Unprotect(ctx, w.admin, "", []string{"guarded"})))
			w.exec("truncate public.guarded; insert into public.guarded select 'k', n::text from generate_series(1, 100) n; insert into public.result select * from public.guarded")
			w.protect("key", "guarded")
			n := 0
			took := map[string][]float64{}
			commit := func(table string) {
				n++
				sql := fmt.Sprintf(c.sql, table, c.rows)
				start := time.Now()
				_, err := lease.Commit(ctx, content(fmt.Sprint(b.N, c.name, c.rows, n), "x"), func(ctx context.Context, tx fencing.Tx) error {
					_, err := tx.Exec(ctx, sql)
					return err
				})
				took[table] = append(took[table], float64(time.Since(start)))
				if err != nil {
					b.Fatal(err)
				}
			}
			for range 5 { // plans and caches
				commit("result")
				commit("guarded")
			}
			clear(took)
			b.ResetTimer()
			for i := range b.N {
				if i%2 == 0 {
					commit("result")
					commit("guarded")
				} else {
					commit("guarded")
					commit("result")
				}
			}
			b.StopTimer()
			ratios := make([]float64, b.N)
			for i := range ratios {
				ratios[i] = took["guarded"][i] / took["result"][i]
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[b.N/2], "protected/plain")
			slices.Sort(took["guarded"])
			slices.Sort(took["result"])
			b.ReportMetric((took["guarded"][b.N/2]-took["result"][b.N/2])/1000/float64(c.rows), "µs/row")
		})
	}
}
