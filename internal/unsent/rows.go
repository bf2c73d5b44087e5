package unsent

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Rows is the answer to a statement that was not sent.
type Rows struct{ Error error }

var _ pgx.Rows = Rows{}

func (r Rows) Close()                                       {}
func (r Rows) Err() error                                   { return r.Error }
func (r Rows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r Rows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r Rows) Next() bool                                   { return false }
func (r Rows) Scan(...any) error                            { return r.Error }
func (r Rows) Values() ([]any, error)                       { return nil, r.Error }
func (r Rows) RawValues() [][]byte                          { return nil }
func (r Rows) TypeMap() *pgtype.Map                         { return nil }
func (r Rows) Conn() *pgx.Conn                              { return nil }
