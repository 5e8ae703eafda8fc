package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// A long body that proves unreadable at its very end never reaches the upstream whole. Even the JSON document in it is
// incomplete, because a server that stops reading at its end would otherwise have answered.
func TestUnreadableBodiesNeverArriveWhole(t *testing.T) {
	picture := `{"model": "large", "x": "` + strings.Repeat("A", 2*mebibyte) + `"`
	for name, body := range map[string]string{
		"a byte behind it":    picture + "}x",
		"a second document":   picture + `}{"model": "large"}`,
		"far behind it":       picture + "}" + strings.Repeat("\n", 100) + "x",
		"half a character":    picture + "}\xe2",
		"no end":              picture,
		"half a literal":      "[" + picture + "}, tru",
		"many blanks":         picture + "}" + strings.Repeat(" ", maxHeld),
		"blanks to the end":   picture + strings.Repeat(" ", 64<<10),
		"another stream":      picture + `, "stream": true, "stream": false}`,
		"not an object":       "[" + picture + "}]",
		"another model":       picture + `, "models": ["larger"]}`,
		"fallbacks":           picture + `, "fallbacks": [{"model": "larger"}]}`,
		"a limit that is odd": picture + `, "max_tokens": "9x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			l := &long{ReadCloser: io.NopCloser(strings.NewReader(body)), body: usage.NewBody(), most: assumedOutput, edits: true}
			if got, err := io.ReadAll(l); err == nil || len(got) >= len(body) {
				t.Errorf("%d of %d bytes were read, %v", len(got), len(body), err)
			}
			for _, by := range []struct{ h2, chunked bool }{{false, false}, {false, true}, {true, false}} {
				l := pricedLimiter(t, daily("usd", 1000))
				d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
					got, err := io.ReadAll(r.Body)
					if err == nil {
						t.Error("the upstream has the whole body")
					}
					var document any
					if json.NewDecoder(bytes.NewReader(got)).Decode(&document) == nil {
						t.Error("the upstream has the whole document")
					}
				}, setup{limiter: l, tls: by.h2})
				req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(body))
				if by.chunked {
					req.ContentLength = -1
				}
				a := d.doWhole(t, req)
				wantError(t, a, 400, "BAD_REQUEST")
				if got := left(t, l)["usd"]; got != "1000" {
					t.Errorf("%s usd are left", got)
				}
			}
		})
	}
}

// A long body that can be metered is forwarded byte for byte, however it is split into reads. If the gateway adds
// stream_options, it adds them before the closing brace.
func TestLongBodiesArriveWhole(t *testing.T) {
	const start, end = `{"messages": [{"content": "hi {} [] \" "}], "stream": true`, "}" + "\r\n \t"
	for _, body := range []string{start + end, "{}", " [1, 2]\n", "7", "{}" + strings.Repeat(" ", maxHeld-1), start + strings.Repeat(", \"x\": 1", 10_000) + end} {
		for _, edits := range []bool{false, true} {
			want := body
			if edits {
				if body[0] != '{' {
					continue
				}
				closing := strings.LastIndexByte(body, '}')
				added := usage.Blank
				if strings.Contains(body, "stream") {
					added = usage.UsageAtEnd
				}
				want = body[:closing] + added + body[closing:]
			}
			for _, arrive := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader, func(r io.Reader) io.Reader { return r }} {
				for _, leave := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader} {
					l := &long{ReadCloser: io.NopCloser(arrive(strings.NewReader(body))), body: usage.NewBody(), most: assumedOutput, edits: edits}
					if got, err := io.ReadAll(leave(l)); err != nil || string(got) != want {
						t.Fatalf("%d bytes of %d: %.200s, %v", len(got), len(want), got, err)
					}
				}
			}
		}
	}
}

// If reading the client's body fails, the error is passed on, and the body isn't reported as unreadable.
func TestALongBodyThatBreaks(t *testing.T) {
	broken := errors.New("broken")
	l := &long{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader(`{"x": 1`), iotest.ErrReader(broken))), body: usage.NewBody(), most: assumedOutput}
	if got, err := io.ReadAll(l); !errors.Is(err, broken) || string(got) != `{"x": ` {
		t.Errorf("%q, %v", got, err)
	}
}

// The output reserved before a body's first MiB is read also bounds a limit that comes later in the body.
func TestLateLimitsCantRaiseTheReservation(t *testing.T) {
	const limit = 1_000_000
	picture := `"x": "` + strings.Repeat("A", 2*mebibyte) + `"`
	for name, c := range map[string]struct {
		before, after string
		reserved      int64 // zero if the request is refused
	}{
		"none":                    {"", "", lateOutput},
		"a low one":               {"", `, "max_tokens": 100`, lateOutput},
		"the highest":             {"", `, "max_tokens": 32768`, lateOutput},
		"a higher one":            {"", `, "max_tokens": 32769`, 0},
		"one of many choices":     {"", `, "max_tokens": 5000, "n": 8`, 0},
		"a few choices":           {"", `, "n": 8`, lateOutput},
		"many choices":            {"", `, "n": 9`, 0},
		"choices before it":       {`"n": 10, `, "", 10 * assumedOutput},
		"more of them behind it":  {`"n": 10, `, `, "max_tokens": 5000`, 0},
		"fewer tokens behind it":  {`"n": 10, `, `, "max_tokens": 1000`, 10 * assumedOutput},
		"a high one before it":    {`"max_tokens": 100000, `, "", 100_000},
		"none, as far as that is": {`"max_tokens": -1, `, "", lateOutput},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("output", limit))
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					if c.reserved == 0 {
						t.Error("the upstream has the whole body")
					}
					if got := left(t, l)["output"]; got != fmt.Sprint(limit-c.reserved) {
						t.Errorf("%s left, want %d less than %d", got, c.reserved, limit)
					}
				}
				jsonAnswer(`{"usage": {"prompt_tokens": 1, "completion_tokens": 50, "total_tokens": 51}}`)(w, r)
			}, setup{limiter: l})
			a := d.ask(t, "/v1/chat/completions", `{"model": "m", `+c.before+picture+c.after+`}`)
			status, took := 200, int64(50)
			if c.reserved == 0 {
				status, took = 400, 0
			}
			if got := left(t, l)["output"]; a.StatusCode != status || got != fmt.Sprint(limit-took) {
				t.Errorf("%d with %s left, want %d with %d; %s", a.StatusCode, got, status, limit-took, a.body)
			}
		})
	}
}
