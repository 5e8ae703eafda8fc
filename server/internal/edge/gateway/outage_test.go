package gateway

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// When the upstream is down, the gateway logs one line at once, then one a minute, whatever the load, and one when it
// is back.
func TestAnOutageIsLoggedOnceWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		o := &outage{log: slog.New(slog.NewTextHandler(j, nil)), message: noAnswer}
		fails := func(n int) {
			for range n {
				o.fail(slog.Int("status", 502))
			}
		}
		seen := 0
		says := func(want ...string) {
			t.Helper()
			synctest.Wait()
			text := j.String()[seen:]
			seen += len(text)
			lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
			if len(lines) != len(want) {
				t.Fatalf("got %q, want %q", lines, want)
			}
			for i, w := range want {
				if !strings.HasSuffix(lines[i], w) {
					t.Errorf("got %q, want %q", lines[i], w)
				}
			}
		}
		o.answered()
		fails(1000)
		says(`level=WARN msg="no answer from the upstream" status=502`)
		time.Sleep(time.Minute)
		fails(1)
		says(`level=WARN msg="no answer from the upstream" status=502 failed=1000`)
		fails(499)
		o.answered()
		o.answered()
		says(`level=INFO msg="the upstream answers again" failed=1500 after=1m0s`)
		// An upstream that alternates between failures and responses causes no more lines.
		for range 100 {
			fails(2)
			o.answered()
		}
		says()
		time.Sleep(time.Minute)
		fails(1)
		says(`level=WARN msg="no answer from the upstream" status=502 failed=201`)
		o.answered() // after a single failure, the gateway doesn't log that the upstream is back
		time.Sleep(time.Minute)
		fails(1)
		says(`level=WARN msg="no answer from the upstream" status=502`)
		o.answered()
		time.Sleep(time.Hour)
		says()
	})
}

// Responses that break off are logged like an outage: one line at once, not one for each.
func TestBrokenAnswersAreLoggedOnce(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half of it")
	})
	handled := make(chan struct{}, 1)
	d := start(t, setup{upstream: up.URL, handled: handled})
	for range 20 {
		res, err := d.client.Do(d.request(t, "GET", "/", nil))
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Error("half an answer is whole")
		}
		await(t, handled, "the end at the gateway")
	}
	if n := strings.Count(d.log.String(), "level=WARN"); n > 3 { // one, and one more for each minute that the test takes
		t.Errorf("%d lines for 20 answers: %s", n, d.log)
	}
	if !strings.Contains(d.log.String(), `msg="the upstream broke off its answer" error="unexpected EOF"`) {
		t.Error(d.log)
	}
}
