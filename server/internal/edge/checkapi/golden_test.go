package checkapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func goldenRules() weir.Rules {
	return weir.Rules{
		Version: 42,
		Tiers:   []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(10)}}, {Name: "pro", Limits: []weir.Limit{weir.PerMinute(1000)}}},
		Rules: []weir.Rule{
			{ID: "orders", Match: weir.Match{EndpointRegex: "^/v1/orders.*"},
				Limits: []weir.Limit{{Count: 100, Window: time.Minute, Refill: 1.67}}},
			{ID: "tiered", Match: weir.Match{Endpoint: "/tiered"}},
			{ID: "anonymous", Match: weir.Match{Endpoint: "/open"}, By: []string{"ip"},
				Limits: []weir.Limit{weir.PerSecond(20), weir.PerHour(5000)}},
			{ID: "private", Match: weir.Match{Endpoint: "/private"}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: perHour(10)},
			{ID: "queue", Match: weir.Match{Endpoint: "POST /jobs"}, Algorithm: weir.LeakyQueue, Limits: []weir.Limit{weir.PerSecond(4)}},
			{ID: "trial", Match: weir.Match{Endpoint: "/trial"}, Shadow: true, Limits: perHour(1)},
			{ID: "login", Match: weir.Match{Endpoint: "/login"}, OnStoreFailure: weir.FailRefuse, Limits: perHour(5)},
			{ID: "feed", Match: weir.Match{Endpoint: "/feed"}, Limits: perHour(5)},
			{ID: "session", Match: weir.Match{Endpoint: "/session"}, OnStoreFailure: weir.FailRefuse, Limits: perHour(5)},
			{ID: "global", Match: weir.Match{Endpoint: "/session"}, By: []string{}, Limits: perHour(1000)},
			{ID: "chats", Match: weir.Match{Endpoint: "/chat"}, Limits: perHour(60)},
			{ID: "tokens", Match: weir.Match{Endpoint: "/chat"}, Amount: "tokens", Limits: []weir.Limit{weir.PerMinute(2000)}},
			{ID: "spend", Match: weir.Match{Endpoint: "/chat"}, By: []string{"org"}, Missing: weir.MissingSkip, Amount: "usd",
				Calendar: counter.Calendar{Zone: "Europe/Berlin", Day: 15}, Limits: []weir.Limit{{Count: 1, Fraction: 500_000, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}},
			{ID: "streams", Match: weir.Match{Endpoint: "/stream"}, Algorithm: weir.Concurrency, SlotTTL: 10 * time.Second, Limits: []weir.Limit{{Count: 2}}},
			{ID: "minutes", Match: weir.Match{Endpoint: "/stream"}, Limits: perHour(60)},
			{ID: "daily", Match: weir.Match{Endpoint: "/daily"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 10, Window: 24 * time.Hour}}},
			{ID: "regional", Match: weir.Match{Endpoint: "/regional"}, By: []string{"attr:region", "header:X-Tenant", "claim:plan"}, Limits: perHour(3)},
		},
		Prices: []weir.Sum{{Name: "gpt-*", Parts: []weir.Weight{{Amount: "input", Each: 2_500_000}, {Amount: "output", Each: 10_000_000}}}},
		Allow:  []string{"sk_internal_*"},
		Deny:   []string{"sk_revoked_*"},
	}
}

var update = flag.Bool("update", false, "write what is answered into testdata instead of comparing")

var sealed = regexp.MustCompile(`"receipt":"[A-Za-z0-9_-]{100,}"`)

// TestAnswers runs the files in testdata. Each is a series of calls to one handler, in blocks of lines:
//
//	# what the call shows
//	wait 1s
//	POST /v1/check {"key": "k"}
//	200
//	Content-Type: application/json
//	{"allowed": …}
//
// The whole response follows the call. Time passes only through wait. RECEIPT in a call stands for the last receipt that
// was returned.
func TestAnswers(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			blocks := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n\n")
			synctest.Test(t, func(t *testing.T) {
				store := &brokenStore{Store: newStore(), rules: []string{"login", "feed"}}
				h := checkapi.New(newLimiter(t, store, goldenRules()), nil, checkapi.Options{})
				receipt := ""
				for i := range blocks {
					blocks[i] = replay(t, h, blocks[i], &receipt)
				}
			})
			if *update {
				if err := os.WriteFile(name, []byte(strings.Join(blocks, "\n\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// replay makes the call of a block, compares the response, and returns the block with the actual response.
func replay(t *testing.T, h http.Handler, block string, receipt *string) string {
	t.Helper()
	head := ""
	for rest := block; rest != ""; {
		line, below, _ := strings.Cut(rest, "\n")
		head += line + "\n"
		if wait, ok := strings.CutPrefix(line, "wait "); ok {
			d, err := time.ParseDuration(wait)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(d)
		}
		if call, ok := strings.CutPrefix(line, "POST "); ok {
			path, body, _ := strings.Cut(call, " ")
			w := post(h, path, strings.ReplaceAll(body, "RECEIPT", *receipt))
			checkWire(t, w)
			if m := sealed.FindString(w.Body.String()); m != "" {
				*receipt = strings.TrimSuffix(strings.TrimPrefix(m, `"receipt":"`), `"`)
			}
			maskJitter(t, w)
			got := strings.TrimSuffix(sealed.ReplaceAllString(dump(w), `"receipt":"SEALED"`), "\n")
			if got != below && !*update {
				t.Errorf("%sgot\n%s\nwant\n%s", head, got, below)
			}
			return head + got
		}
		rest = below
	}
	return block
}

var retryAfterMS = regexp.MustCompile(`"retry_after_ms":(-?\d+)`)

// maskJitter checks that Retry-After is the time in the body plus at most a fifth, and hides the random part.
func maskJitter(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	header := w.Header().Get("Retry-After")
	if header == "" {
		return
	}
	seconds, err := strconv.Atoi(header)
	if err != nil {
		t.Fatal(err)
	}
	ms, _ := strconv.Atoi(retryAfterMS.FindStringSubmatch(w.Body.String())[1])
	whole := (ms + 999) / 1000
	switch {
	case w.Code == http.StatusServiceUnavailable && seconds >= 1 && seconds <= 5 && whole == seconds:
		body := retryAfterMS.ReplaceAllString(w.Body.String(), `"retry_after_ms":JITTERED`)
		w.Body.Reset()
		w.Body.WriteString(body)
	case seconds < whole || seconds > whole+min(whole/5, 30)+1:
		t.Errorf("Retry-After is %d for %d ms", seconds, ms)
	case seconds == whole:
		return
	}
	w.Header().Set("Retry-After", "JITTERED")
}

// checkWire decodes a response into its exported type and encodes it again. The bytes must be the same.
func checkWire(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	var v any = new(checkapi.CheckResponse)
	switch body := w.Body.Bytes(); {
	case bytes.HasPrefix(body, []byte(`{"error"`)):
		v = new(checkapi.ErrorResponse)
	case bytes.HasPrefix(body, []byte(`{"results":[{"renewed"`)):
		v = new(checkapi.RenewResponse)
	case bytes.HasPrefix(body, []byte(`{"results"`)):
		v = new(checkapi.BatchResponse)
	case bytes.HasPrefix(body, []byte(`{"settled"`)):
		v = new(checkapi.SettleResponse)
	case bytes.HasPrefix(body, []byte(`{"released"`)):
		v = new(checkapi.ReleaseResponse)
	case bytes.HasPrefix(body, []byte(`{"renewed"`)):
		v = new(checkapi.Renewal)
	case bytes.HasPrefix(body, []byte(`{"refunded"`)):
		v = new(checkapi.RefundResponse)
	}
	dec := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		t.Errorf("%v in %s", err, w.Body)
	}
	again, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if again = append(again, '\n'); !bytes.Equal(again, w.Body.Bytes()) {
		t.Errorf("encoding/json writes it differently:\n%s%s", w.Body, again)
	}
}
