package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Enter passes the gate inside a transaction of the caller's, who commits it.
// It is for those who must own their transaction; [Fences.Commit] is shorter
// and handles every outcome. The transaction must be READ COMMITTED, and Enter
// a statement of its own in it. From then on the transaction may be idle, or busy in
// one statement, for Config.GateTimeout at most.
//
// Every answer but a first commit is an error, after which the transaction can
// only be rolled back: a [*RefusedError] also for ErrReplayed, which here waits for no
// synchronous standby as Commit's does.
func (f *Fences) Enter(ctx context.Context, t pgx.Tx, pos Position, content Content) (*Entered, error) {
	if err := errors.Join(pos.validate(), content.validate()); err != nil {
		return nil, err
	}
	var at time.Time
	e := f.enterStatement(pos, content, f.cfg.GateTimeout, &at)
	if err := e.read(t.QueryRow(ctx, e.sql, e.args...)); err != nil {
		return nil, content.recheck(translate(err))
	}
	return &Entered{Tx: t, pass: Pass{Schema: f.cfg.Schema, Key: pos.Key, Epoch: pos.Epoch, Token: pos.Token, Step: content.Step}, sql: &f.sql}, nil
}

// Entered is a caller's own transaction that has passed the gate through
// [Fences.Enter]. The caller commits it.
type Entered struct {
	pgx.Tx
	pass Pass
	sql  *statements
}

// Gate says which gate it has passed.
func (t *Entered) Gate() Pass { return t.pass }

// SetResult puts a small result, at most 8 KiB, into the receipt.
func (t *Entered) SetResult(ctx context.Context, result []byte) error {
	if err := validateResult(result); err != nil {
		return err
	}
	_, err := t.Exec(ctx, t.sql.setResult, t.pass.Key, t.pass.Epoch, t.pass.Token, t.pass.Step, result)
	return translate(err)
}

func validateResult(result []byte) error {
	if len(result) > maxResult {
		return &InvalidError{"result", fmt.Sprintf("has %d bytes, a receipt carries at most %d", len(result), maxResult)}
	}
	return nil
}
