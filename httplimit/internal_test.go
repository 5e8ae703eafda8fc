package httplimit

import (
	"encoding/json"
	"io"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/jsonerror"
)

// Where no doubt is raised, a handler that asks net/url sees the same key as the limiter, and sees it once.
func TestQueryValueIsThatOfNetURL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"key", "k%65y", "%6bey", "KEY", "k", "=", "==", "&", "&&", ";", "%", "%zz", "%3d", "%26", "+", " ", "a", "é", "%00", ""})
		query := ""
		for range rapid.IntRange(0, 12).Draw(t, "parts") {
			query += part.Draw(t, "part")
		}
		name := rapid.SampledFrom([]string{"key", "k", "a b", "a+b", "é"}).Draw(t, "name")
		values, _ := url.ParseQuery(query) // as URL.Query, what can't be read is left out
		got, doubt := queryValue(query, name)
		if doubt == "" && (got != values.Get(name) || len(values[name]) > 1) {
			t.Errorf("%q in %q: got %q, want %q", name, query, got, values[name])
		}
		if doubt != "" && got != "" {
			t.Errorf("%q in %q: %q, and %s", name, query, got, doubt)
		}
	})
}

// Whatever a name holds, what is sent can be read.
func TestStringsCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		var got string
		if err := json.Unmarshal(jsonerror.AppendString(nil, s), &got); err != nil || got != string([]rune(s)) {
			t.Errorf("JSON: %q is read as %q, %v", s, got, err)
		}
		quoted := string(appendQuoted(nil, s))
		item, err := httpsfv.UnmarshalItem([]string{quoted})
		if err != nil {
			t.Fatalf("%s: %v", quoted, err)
		}
		want := []byte(s)
		for i, c := range want {
			if c < ' ' || c > '~' {
				want[i] = '?'
			}
		}
		if item.Value != string(want) {
			t.Errorf("structured field: %q is read as %q", s, item.Value)
		}
	})
}

// What clients announce isn't allocated, and what they send of it is bounded for all of them together.
func TestReadingAheadIsBounded(t *testing.T) {
	room := newRoom(0)
	var all []*early
	begin := func(announced, sent int) *early {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest("POST", "/", io.LimitReader(endless{}, int64(sent)))
		r.ContentLength = int64(announced)
		e := readEarly(w, r, room)
		<-e.done
		all = append(all, e)
		return e
	}
	if e := begin(maxEarly, 1); cap(e.ahead) > 512 || room.ahead.Load() > 512 {
		t.Errorf("for a byte of %d announced, %d were allocated", maxEarly, cap(e.ahead))
	}
	for range 2 * maxAhead / maxEarly {
		begin(maxEarly, maxEarly)
	}
	if got := room.ahead.Load(); got > maxAhead || got < maxAhead-maxEarly {
		t.Errorf("%d bytes are held", got)
	}
	last := all[len(all)-1]
	last.hand()
	if n, err := io.Copy(io.Discard, last); n != maxEarly || err != nil {
		t.Errorf("a body of which little was read ahead: %d bytes, %v", n, err)
	}
	for _, e := range all {
		e.release()
		e.release()
	}
	if got := room.ahead.Load(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
	}
}

// deadlines is a writer that takes deadlines.
type deadlines struct{ *httptest.ResponseRecorder }

func (*deadlines) SetReadDeadline(time.Time) error { return nil }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
