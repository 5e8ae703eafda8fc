package checkapi_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// held returns a check API where each request, once it is decided, signals deciding and then waits for goOn.
func held(t *testing.T, most int) (h http.Handler, deciding, goOn chan struct{}) {
	t.Helper()
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: perHour(1000)}}})
	if err != nil {
		t.Fatal(err)
	}
	deciding, goOn = make(chan struct{}, 100), make(chan struct{})
	l := weir.NewLimiter(newStore(), set, weir.Options{Observe: func(o *weir.Observation) {
		if o.Decision.Reason == weir.ReasonOverloaded {
			return // the request was shed, not decided
		}
		if o.Request.APIKey == "panic" {
			panic(http.ErrAbortHandler)
		}
		deciding <- struct{}{}
		<-goOn
	}})
	return checkapi.New(l, nil, checkapi.Options{MaxInFlight: most}), deciding, goOn
}

const shed = "503\nContent-Type: application/json\nRetry-After: 1\n" +
	`{"error":{"code":"OVERLOADED","message":"this node is overloaded: try again shortly, or ask another"}}` + "\n"

// TestRequestsInFlightAreBounded checks that however many requests arrive, only so many are decided at a time. Every
// endpoint sheds the rest.
func TestRequestsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, deciding, goOn := held(t, 2)
		answers := make(chan string, 100)
		ask := func(path, body string) { answers <- dump(post(h, path, body)) }
		go ask("/v1/check", `{"key":"a"}`)
		go ask("/v1/check", `{"key":"b"}`)
		synctest.Wait()
		for path, body := range map[string]string{
			"/v1/check": `{"key":"c"}`, "/v1/checks": `{"checks":[{"key":"c"}]}`,
			"/v1/take": `{"key":"c","limit":"1/hour"}`, "/v1/refund": `{"receipt":"c"}`,
			"/v1/settle": `{"receipt":"c","unknown":true}`, "/v1/release": `{"receipt":"c"}`, "/v1/renew": `{"receipts":["c"]}`,
			"/v1/check?": `{`, // shed before it is read
		} {
			go ask(path, body)
		}
		for range 8 {
			if got := <-answers; got != shed {
				t.Errorf("got %s", got)
			}
		}
		if n := len(deciding); n != 2 {
			t.Errorf("%d requests were decided", n)
		}
		close(goOn)
		for range 2 {
			if got := <-answers; !strings.HasPrefix(got, "200\n") {
				t.Errorf("a request in flight: %s", got)
			}
		}
		if w := post(h, "/v1/check", `{"key":"d"}`); w.Code != 200 {
			t.Errorf("afterwards: %d", w.Code)
		}
	})
}

// TestSlowClientsHoldNoPlace checks that a client holds no place while its body hasn't arrived or while it doesn't read
// its response, nor after a panic.
func TestSlowClientsHoldNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, goOn := held(t, 1)
		close(goOn)
		body, more := io.Pipe()
		slow := httptest.NewRequest(http.MethodPost, "/v1/check", body)
		go h.ServeHTTP(httptest.NewRecorder(), slow)
		taken, take := io.Pipe()
		go h.ServeHTTP(&slowTaker{httptest.NewRecorder(), take}, httptest.NewRequest(http.MethodPost, "/v1/checks", strings.NewReader(`{"checks":[{"key":"a"}]}`)))
		func() {
			defer func() { _ = recover() }()
			post(h, "/v1/check", `{"key":"panic"}`)
		}()
		synctest.Wait()
		if w := post(h, "/v1/check", `{"key":"b"}`); w.Code != 200 {
			t.Errorf("got %s", dump(w))
		}
		more.Close()
		taken.Close()
	})
}

// slowTaker is a client that doesn't read its response.
type slowTaker struct {
	http.ResponseWriter
	to *io.PipeWriter
}

func (s *slowTaker) Write(b []byte) (int, error) { return s.to.Write(b) }

// TestAWaitingClientThatLeavesIsNotDecided checks that a waiting request whose client leaves isn't decided.
func TestAWaitingClientThatLeavesIsNotDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, deciding, goOn := held(t, 1)
		go post(h, "/v1/check", `{"key":"a"}`)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/check", strings.NewReader(`{"key":"b"}`)).WithContext(ctx))
		}()
		synctest.Wait()
		cancel()
		<-done
		close(goOn)
		synctest.Wait()
		if n := len(deciding); n != 1 {
			t.Errorf("%d requests were decided, want 1: the other client had left", n)
		}
	})
}

// TestShedRequestsAreObserved checks that observers see each request that is shed once, including batches.
func TestShedRequestsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: perHour(1000)}}})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		goOn := make(chan struct{})
		l := weir.NewLimiter(newStore(), set, weir.Options{Observe: func(o *weir.Observation) {
			if o.Request.APIKey == "slow" {
				<-goOn
				return
			}
			told = append(told, o.Request.Edge+" "+o.Decision.Reason.String())
		}})
		h := checkapi.New(l, nil, checkapi.Options{MaxInFlight: 1})
		answered := make(chan struct{})
		go func() {
			post(h, "/v1/check", `{"key":"slow"}`)
			close(answered)
		}()
		synctest.Wait()
		for path, body := range map[string]string{
			"/v1/check": `{"key":"c"}`, "/v1/checks": `{"checks":[{"key":"c"},{"key":"d"}]}`, "/v1/take": `{"key":"c","limit":"1/hour"}`,
		} {
			told = nil
			if got := dump(post(h, path, body)); got != shed || len(told) != 1 || told[0] != "check overloaded" {
				t.Errorf("%s: told %q: %s", path, told, got)
			}
		}
		close(goOn)
		<-answered
	})
}
