package fencing_test

import (
	"errors"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

func jsonContent(algorithm fencing.Algorithm, text string) fencing.Content {
	return fencing.Content{Step: "s", Type: "application/json", Bytes: []byte(text), Algorithm: algorithm}
}

func TestContentThatIsTheSameCanonicalJSONIsReplayedAndOtherIsAConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, jsonContent(fencing.StrictJSON, `{"id": 7, "note": "é", "n": [1e2]}`))
	w.ok(err)
	if algo := value[string](w, "select algo from fenceline.receipt where key = 'k'"); algo != "sha256/jcs-strict/1" {
		t.Errorf("the receipt names the algorithm %q", algo)
	}
	again, err := a.commit(pos, jsonContent(fencing.StrictJSON, "{\"n\":[100.0],\n\"note\":\"\\u00e9\",\"id\":7}"))
	w.ok(err)
	if !again.Replayed {
		t.Error("the same value in another spelling is not replayed")
	}
	for name, c := range map[string]fencing.Content{
		"another value":     jsonContent(fencing.StrictJSON, `{"id": 8, "note": "é", "n": [1e2]}`),
		"a member more":     jsonContent(fencing.StrictJSON, `{"id": 7, "note": "é", "n": [1e2], "x": null}`),
		"not normalised":    jsonContent(fencing.StrictJSON, `{"id": 7, "note": "e\u0301", "n": [1e2]}`),
		"text for a number": jsonContent(fencing.StrictJSON, `{"id": "7", "note": "é", "n": [1e2]}`),
		"another type":      {Step: "s", Type: "text/json", Bytes: []byte(`{"id": 7, "note": "é", "n": [1e2]}`), Algorithm: fencing.StrictJSON},
	} {
		if _, err := a.commit(pos, c); !errors.Is(err, fencing.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.wantWritten("k", written{1, 1, 1})
}

// The pairs are one document to a canonicaliser that is not strict.
func TestJSONThatOnlyACanonicaliserWouldMergeIsRefusedStrictlyAndAConflictRaw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	for key, pair := range map[string][2]string{
		"integers":   {`{"id":9007199254740993}`, `{"id":9007199254740992}`},
		"digits":     {`{"id":0.10000000000000001}`, `{"id":0.1}`},
		"names":      {`{"a":1,"\u0061":2}`, `{"a":2}`},
		"underflow":  {`[1e-400]`, `[0]`},
		"characters": {"[\"\xff\"]", "[\"\ufffd\"]"},
		"surrogates": {`["\ud800"]`, `["\ufffd"]`},
	} {
		pos := a.acquire(key).Position()
		_, err := a.commit(pos, jsonContent(fencing.StrictJSON, pair[0]))
		var refused *fencing.JSONError
		if !errors.As(err, &refused) || !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("%s: %v, want a JSONError", key, err)
		}
		w.wantWritten(key, written{})
		_, err = a.commit(pos, jsonContent("", pair[0]))
		w.ok(err)
		if _, err = a.commit(pos, jsonContent("", pair[1])); !errors.Is(err, fencing.ErrConflict) {
			t.Errorf("%s: raw: %v, want a conflict", key, err)
		}
		w.wantWritten(key, written{1, 1, 1})
	}
}

// Between the first attempt and the retry the program was changed to the other
// algorithm. In each shape of a commit.
func TestARetryUnderAnotherAlgorithmIsComparedWithTheFirstOnes(t *testing.T) {
	t.Parallel()
	const text, spelt, other = `{"a":1,"b":[true]}`, `{ "b":[true], "a":1.0 }`, `{"a":2}`
	for name, c := range map[string]struct {
		first, then fencing.Algorithm
		body        string
		want        error // nil: replayed
	}{
		"raw, then JSON, same bytes":            {fencing.RawBytes, fencing.StrictJSON, text, nil},
		"raw, then JSON, same value":            {fencing.RawBytes, fencing.StrictJSON, spelt, fencing.ErrConflict},
		"raw, then JSON, other value":           {fencing.RawBytes, fencing.StrictJSON, other, fencing.ErrConflict},
		"JSON, then raw, same bytes":            {fencing.StrictJSON, fencing.RawBytes, text, nil},
		"JSON, then raw, same value":            {fencing.StrictJSON, fencing.RawBytes, spelt, nil},
		"JSON, then raw, other value":           {fencing.StrictJSON, fencing.RawBytes, other, fencing.ErrConflict},
		"JSON, then raw, what is no JSON":       {fencing.StrictJSON, fencing.RawBytes, "text", fencing.ErrConflict},
		"JSON, then raw, what JSON would merge": {fencing.StrictJSON, fencing.RawBytes, `{"a":1,"b":[true],"b":[true]}`, fencing.ErrConflict},
		"one that is not known, then raw":       {"sha999/raw/1", fencing.RawBytes, text, fencing.ErrUnconfirmable},
		"one that is not known, then JSON":      {"sha999/raw/1", fencing.StrictJSON, text, fencing.ErrUnconfirmable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a, b := w.worker("a"), w.worker("b")
			pos := a.acquire("k").Position()
			known := c.first
			if c.want == fencing.ErrUnconfirmable {
				known = fencing.RawBytes
			}
			first, err := a.commit(pos, jsonContent(known, text))
			w.ok(err)
			if known != c.first {
				w.exec("update fenceline.receipt set algo = $1", string(c.first))
			}
			b.takeOver("k") // the answer is the receipt's, wherever the fence is
			for shape, retry := range map[string]func(fencing.Content) (fencing.Receipt, error){
				"callback": func(c fencing.Content) (fencing.Receipt, error) { return b.commit(pos, c) },
				"batch": func(c fencing.Content) (fencing.Receipt, error) {
					return b.CommitBatch(ctx, pos, c, func(*fencing.Batch) error { return nil })
				},
				"own transaction": func(c fencing.Content) (r fencing.Receipt, err error) {
					tx, err := b.pool.Begin(ctx)
					w.ok(err)
					defer func() { _ = tx.Rollback(ctx) }()
					_, err = b.Enter(ctx, tx, pos, c)
					if errors.Is(err, fencing.ErrReplayed) {
						return fencing.Receipt{Replayed: true, CommittedAt: evidence(w, err).CommittedAt}, nil
					}
					return r, err
				},
			} {
				receipt, err := retry(jsonContent(c.then, c.body))
				switch {
				case c.want == nil && err == nil:
					if !receipt.Replayed || !receipt.CommittedAt.Equal(first.CommittedAt) {
						t.Errorf("%s: replayed %v of %v, want of %v", shape, receipt.Replayed, receipt.CommittedAt, first.CommittedAt)
					}
				case c.want == nil || !errors.Is(err, c.want):
					t.Errorf("%s: %v, want %v", shape, err, c.want)
				default:
					if e := evidence(w, err); e.Algorithm != c.first || len(e.Digest) == 0 {
						t.Errorf("%s: evidence %+v does not name the first algorithm", shape, e)
					}
				}
			}
			w.wantWritten("k", written{1, 1, 1})
		})
	}
}
