package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/jsonerror"
)

// If the limiter doesn't report a key as ambiguous, net/url reads the same key, and only once.
func TestQueryValueIsThatOfNetURL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"key", "k%65y", "%6bey", "KEY", "k", "=", "==", "&", "&&", ";", "%", "%zz", "%3d", "%26", "+", " ", "a", "é", "%00", ""})
		query := ""
		for range rapid.IntRange(0, 12).Draw(t, "parts") {
			query += part.Draw(t, "part")
		}
		name := rapid.SampledFrom([]string{"key", "k", "a b", "a+b", "é"}).Draw(t, "name")
		values, _ := url.ParseQuery(query) // like URL.Query, ignore what can't be parsed
		got, doubt := queryValue(query, name)
		if doubt == "" && (got != values.Get(name) || len(values[name]) > 1) {
			t.Errorf("%q in %q: got %q, want %q", name, query, got, values[name])
		}
		if doubt != "" && got != "" {
			t.Errorf("%q in %q: %q, and %s", name, query, got, doubt)
		}
	})
}

// A parameter counts as the key exactly if some server may read it as the key.
func TestNamesThatServersTakeForAnother(t *testing.T) {
	for name, c := range map[string]struct{ alike, others []string }{
		"api_key": {
			alike: []string{
				"api_key", "API_KEY", "api.key", "api key", "api+key", "api[key", "api%5fkey", "api%5Fkey", "api%2ekey", "%61%70%69%5f%6b%65%79",
				"api%u005fkey", "api%U005Fkey", "%u0061pi_key", "api_ke%u0079", " api_key", "+api_key", "%20api_key", "%09api_key", "%00api_key", "?api_key", "??api_key", "%3fapi_key",
				"api_key ", "api_key+", "api_key%20", "api_key%00x", "api_key[", "api_key[]", "api_key%5B%5D", "api_key%u0020",
			},
			others: []string{
				"", " ", "?", "_", "api_ke", "api_key_", "api_keys", "api_key!", "api_key?", "api_key]", "xapi_key", "api-key", "apikey", "api__key", "api_ key", "api_?key", "apixkey", "a_i_key", "api_.ey",
				"api%", "api%5", "api%5g", "api%5key", "api%g5key", "apix5fkey", "a%5gi_key", "%g0api_key", "%0gapi_key", "%0_api_key",
				"api%u", "api%u0", "api%u00", "api%u005", "api%u015fkey", "api%u105fkey", "api%x005fkey", "api%zz05fkey", "apixu005fkey", "%u00gfapi_key", "%u000gapi_key",
			},
		},
		"a.b":  {alike: []string{"a.b", "a_b", "A b", "a[b", "a%5fb"}, others: []string{"a-b", "axb", "ab"}},
		"api_": {alike: []string{"api_", "api%5f", "api%u005F", "api."}, others: []string{"api", "api%5", "api%u005"}},
		"09jo": {alike: []string{"%30%39%6a%6f", "%30%39%6A%6F", "%u0030%u0039%u004a%u004F"}, others: []string{"%2f9jo", "0%3ajo", "09%69o", "09j%70"}},
	} {
		for _, raw := range c.alike {
			if !couldMean(raw, name) {
				t.Errorf("%q isn't taken for %q", raw, name)
			}
		}
		for _, raw := range c.others {
			if couldMean(raw, name) {
				t.Errorf("%q is taken for %q", raw, name)
			}
		}
	}
}

// Two headers are alike if CGI gives them the same variable: case doesn't matter, and all characters other than letters and
// digits are the same.
func TestHeadersThatAreAlike(t *testing.T) {
	variable := func(c byte) byte { // the character in a variable's name
		if strings.IndexByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", c) >= 0 {
			return strings.ToUpper(string(rune(c)))[0]
		}
		return '_'
	}
	for x := range 0x100 {
		if got, want := notAlphanumeric(rune(x)), variable(byte(x)) == '_'; got != want {
			t.Errorf("%q is no letter or digit: %t", rune(x), got)
		}
		for y := range 0x100 {
			a, b := "X"+string([]byte{byte(x)})+"Y", "x"+string([]byte{byte(y)})+"y"
			if got, want := alike(a, b), variable(byte(x)) == variable(byte(y)); got != want {
				t.Errorf("%q and %q are alike: %t", a, b, got)
			}
		}
	}
	w := newWatch("X-Api-Key", "", "Authorization", "X-Org")
	for name, want := range map[string]string{
		"X-Api-Key": "X-Api-Key", "x_api_key": "X-Api-Key", "X.API_KEY": "X-Api-Key", "X-Api-Kez": "", "X-Api-Ke": "", "X-Api-Keys": "", "": "",
		"authorization": "Authorization", "Author-zation": "", "X_Org": "X-Org", "-Org": "",
	} {
		if got := w.find(name); got != want {
			t.Errorf("%q is taken for %q, want %q", name, got, want)
		}
	}
}

// A header with any name in it can be parsed.
func TestStringsCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		var got string
		if err := json.Unmarshal(jsonerror.AppendString(nil, s), &got); err != nil || got != string([]rune(s)) {
			t.Errorf("JSON: %q is read as %q, %v", s, got, err)
		}
		quoted := quoted(s)
		read, err := readString(quoted)
		if err != nil {
			t.Fatalf("structured field: %s: %v", quoted, err)
		}
		want := []byte(s)
		for i, c := range want {
			if c < ' ' || c > '~' {
				want[i] = '?'
			}
		}
		if read != string(want) {
			t.Errorf("structured field: %q is read as %q", s, read)
		}
	})
}

// readString parses a whole field value as a structured-field string, by the steps of RFC 9651, section 4.2.5.
func readString(s string) (string, error) {
	rest, quoted := strings.CutPrefix(s, `"`)
	if !quoted {
		return "", errors.New("doesn't begin with a quote")
	}
	for out := []byte{}; rest != ""; {
		c := rest[0]
		rest = rest[1:]
		switch {
		case c == '\\':
			if rest == "" || rest[0] != '"' && rest[0] != '\\' {
				return "", errors.New("has a backslash before something else than a quote or a backslash")
			}
			out, rest = append(out, rest[0]), rest[1:]
		case c == '"' && rest != "":
			return "", fmt.Errorf("has %q behind its end", rest)
		case c == '"':
			return string(out), nil
		case c < 0x20 || c >= 0x7f:
			return "", fmt.Errorf("has the byte %#x", c)
		default:
			out = append(out, c)
		}
	}
	return "", errors.New("doesn't end")
}

// A rule may use half of the places, rounded up, and all rules together may use all of them.
func TestPlacesInQueues(t *testing.T) {
	for places, half := range map[int]int{1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 0: DefaultMaxWaiting / 2, -1: DefaultMaxWaiting / 2} {
		m := New(nil, Options{MaxWaiting: places})
		if places <= 0 {
			places = DefaultMaxWaiting
		}
		enter := func(rule string) (n int) {
			for m.enterQueue(rule) {
				n++
			}
			return n
		}
		if a, b, c := enter("a"), enter("b"), enter("c"); a != half || b != min(half, places-half) || c != places-a-b {
			t.Errorf("of %d places, rules have %d, %d and %d", places, a, b, c)
		}
		m.waiting.Leave("a")
		if d := enter("d"); d != 1 {
			t.Errorf("one of %d left, and %d came", places, d)
		}
		m = New(nil, Options{MaxWaiting: places})
		enter("a")
		m.waiting.Leave("a")
		if again := enter("a"); again != 1 {
			t.Errorf("one of the %d of a rule left, and %d came", half, again)
		}
		for range half {
			m.waiting.Leave("a")
		}
		if n := m.waiting.Taken(); n != 0 {
			t.Errorf("of %d places, %d are taken in the end", places, n)
		}
	}
}

// The length that a client announces isn't allocated in advance, and the memory for all clients together is bounded.
func TestReadingAheadIsBounded(t *testing.T) {
	var ahead atomic.Int64
	var all []*early
	begin := func(announced, sent int) *early {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest("POST", "/", io.LimitReader(endless{}, int64(sent)))
		r.ContentLength = int64(announced)
		e := readEarly(w, r, &ahead)
		<-e.done
		all = append(all, e)
		return e
	}
	if e := begin(maxEarly, 1); cap(e.ahead) > 512 || ahead.Load() > 512 {
		t.Errorf("for a byte of %d announced, %d were allocated", maxEarly, cap(e.ahead))
	}
	for range 2 * maxAhead / maxEarly {
		begin(maxEarly, maxEarly)
	}
	if got := ahead.Load(); got > maxAhead || got < maxAhead-maxEarly {
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
	if got := ahead.Load(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
	}
}

// Only HTTP/1 bodies with a known, short length are read ahead, unless the client waits for 100 Continue.
func TestWhichBodiesAreReadAhead(t *testing.T) {
	for _, c := range []struct {
		name   string
		proto  int
		length int64
		expect bool
		want   bool
	}{
		{"short", 1, 5, false, true},
		{"of one byte", 1, 1, false, true},
		{"as long as may be", 1, maxEarly, false, true},
		{"longer", 1, maxEarly + 1, false, false},
		{"none", 1, 0, false, false},
		{"of unknown length", 1, -1, false, false},
		{"over HTTP/2", 2, 5, false, false},
		{"expected to be asked for", 1, 5, true, false},
	} {
		r := httptest.NewRequest("POST", "/", io.LimitReader(endless{}, c.length))
		r.ProtoMajor, r.ContentLength = c.proto, c.length
		if c.expect {
			r.Header.Set("Expect", "100-continue")
		}
		body := r.Body
		e := readEarly(&deadlines{ResponseRecorder: httptest.NewRecorder()}, r, new(atomic.Int64))
		if e != nil {
			<-e.done
		}
		if (e != nil) != c.want || (r.Body != body) != c.want {
			t.Errorf("%s: read ahead: %t", c.name, e != nil)
		}
	}
	e := readEarly(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("hello")), new(atomic.Int64))
	if e != nil {
		t.Error("read ahead where the reading can't be ended")
	}
}

// The memory that is counted for a request is the size of its buffer. The whole body reaches the handler even if it is longer
// than announced, for example because a handler in front has decompressed it.
func TestWhatIsReadAheadIsCounted(t *testing.T) {
	for _, c := range []struct{ announced, sent, held int64 }{
		{1, 1, 2}, {511, 511, 512}, {512, 512, 513}, {4000, 4000, 4001}, {4000, 600, 1024}, {100, 5000, 101}, {maxEarly, maxEarly, maxEarly + 1},
	} {
		var ahead atomic.Int64
		r := httptest.NewRequest("POST", "/", neverInVain{t, io.LimitReader(endless{}, c.sent)})
		r.ContentLength = c.announced
		e := readEarly(&deadlines{ResponseRecorder: httptest.NewRecorder()}, r, &ahead)
		<-e.done
		if got := ahead.Load(); got != c.held {
			t.Errorf("%d bytes are held for %d of %d, want %d", got, c.sent, c.announced, c.held)
		}
		e.hand()
		if n, err := io.Copy(io.Discard, r.Body); n != c.sent || err != nil {
			t.Errorf("%d of %d bytes were handed over, %v", n, c.sent, err)
		}
		e.release()
		if got := ahead.Load(); got != 0 {
			t.Errorf("%d bytes are held in the end", got)
		}
	}
	e := &early{all: new(atomic.Int64)}
	if !e.hold(maxAhead) || e.hold(1) || e.all.Load() != maxAhead {
		t.Errorf("of %d bytes, %d are held", maxAhead, e.all.Load())
	}
}

// neverInVain is a reader that fails the test if it is asked for no bytes.
type neverInVain struct {
	t *testing.T
	io.Reader
}

func (r neverInVain) Read(p []byte) (int, error) {
	if len(p) == 0 {
		r.t.Error("asked for nothing")
		return 0, io.ErrUnexpectedEOF
	}
	return r.Reader.Read(p)
}

// If a body hasn't arrived completely when its request's turn comes, the rest has a deadline. The deadline is removed once the
// body is complete, because the server would treat an expired one as a disconnect. If the body breaks off, the deadline stays,
// because the server may still try to read the rest.
func TestDeadlineOfTheRest(t *testing.T) {
	for _, c := range []struct {
		name string
		turn int // the read during which the turn comes; the third read ends the body
		end  error
		want bool // whether there is a deadline in the end
	}{
		{"whole, in the read at the turn", 3, io.EOF, false},
		{"broken, in the read at the turn", 3, io.ErrUnexpectedEOF, true},
		{"whole, in a read of the handler's", 2, io.EOF, false},
		{"broken, in a read of the handler's", 2, io.ErrUnexpectedEOF, true},
		{"whole before the turn", 4, io.EOF, false},
		{"broken before the turn", 4, io.ErrUnexpectedEOF, false},
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		e := &early{all: new(atomic.Int64), control: http.NewResponseController(w), done: make(chan struct{})}
		reads := 0
		e.body = io.NopCloser(readerFunc(func(p []byte) (int, error) {
			if reads++; reads == c.turn {
				e.hand()
			}
			if reads == 3 {
				return 0, c.end
			}
			return copy(p, "x"), nil
		}))
		e.readAhead(6)
		if want := min(c.turn, 3); reads != want {
			t.Errorf("%s: %d reads ahead, want %d", c.name, reads, want)
		}
		if c.turn > 3 {
			e.hand()
		}
		got, err := io.ReadAll(e)
		if c.end == io.EOF && err != nil || c.end != io.EOF && err != c.end || string(got) != "xx" {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if w.last.IsZero() == c.want {
			t.Errorf("%s: the deadline in the end: %v", c.name, w.last)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// deadlines is a writer that records read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.last = t
	return nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
