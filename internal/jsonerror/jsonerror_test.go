package jsonerror_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weirhq/weir/internal/jsonerror"
)

func TestAppendStringEscapesAsEncodingJSON(t *testing.T) {
	for _, s := range []string{"", "orders", "a-b_c", `"`, `\`, "\x00\n\x7f", "é", "\u2028", "<&>", "\xff", "👩‍👩‍👧"} {
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := jsonerror.AppendString(nil, s); string(got) != string(want) {
			t.Errorf("%q is written %s, want %s", s, got, want)
		}
	}
}

// Write sends the documented JSON, and clients can parse it.
func TestWrite(t *testing.T) {
	e := jsonerror.New(http.StatusConflict, jsonerror.Conflict, "version %d <is> newer", 43)
	e.Header = http.Header{"Retry-After": {"1"}}
	for _, c := range []struct {
		details any
		want    string
	}{
		{nil, `{"error":{"code":"CONFLICT","message":"version 43 \u003cis\u003e newer"}}` + "\n"},
		{map[string]int{"a": 1}, `{"error":{"code":"CONFLICT","message":"version 43 \u003cis\u003e newer","details":{"a":1}}}` + "\n"},
	} {
		e.Details = c.details
		w := httptest.NewRecorder()
		e.Write(w)
		if w.Code != 409 || w.Body.String() != c.want || w.Header().Get("Retry-After") != "1" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		encoded, err := json.Marshal(map[string]any{"error": e})
		if err != nil || string(encoded)+"\n" != c.want {
			t.Errorf("encoding/json has %s, %v", encoded, err)
		}
		var read struct{ Error jsonerror.Error }
		if err := json.Unmarshal(w.Body.Bytes(), &read); err != nil || read.Error.Code != e.Code || read.Error.Message != e.Message {
			t.Errorf("%+v, %v", read, err)
		}
	}
}
