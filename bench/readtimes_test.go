package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestOnlyReadsThatFoundSomethingAreTimed(t *testing.T) {
	for _, c := range []struct {
		sql, tag string
		counts   bool
	}{
		{"select id, payload from outbox order by id", "SELECT 5", true},
		{"select id, payload from outbox order by id", "SELECT 0", false},
		{"insert into outbox (payload) values ($1)", "INSERT 0 5", false},
		{"delete from outbox where id = any ($1)", "DELETE 5", false},
		{"select 1", "SELECT 5", false},
	} {
		r := &readTimes{}
		ctx := r.TraceQueryStart(t.Context(), nil, pgx.TraceQueryStartData{SQL: c.sql})
		r.TraceQueryEnd(ctx, nil, pgx.TraceQueryEndData{CommandTag: pgconn.NewCommandTag(c.tag)})
		if got := len(r.take()); got == 1 != c.counts {
			t.Errorf("%s, %s: timed %d", c.sql, c.tag, got)
		}
	}
}
