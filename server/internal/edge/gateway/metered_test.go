package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// The client receives each part of a stream before the upstream sends the next one, from the first byte on.
func TestMeteringHoldsNothingBack(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		seen, handled := make(chan struct{}), make(chan struct{}, 1)
		l := limiterOf(t, weir.Options{}, daily("tokens", 1000))
		d, _ := metering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			control := http.NewResponseController(w)
			for _, part := range []string{"d", "ata: {\"choi", "ces\":[]}\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}\n\ndata: [DONE]\n\n"} {
				io.WriteString(w, part)
				control.Flush()
				await(t, seen, "the arrival of "+part)
			}
		}, setup{tls: h2, limiter: l, handled: handled})
		req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(strings.Replace(chat, "{", `{"stream": true, `, 1)))
		req.Header.Set("Content-Type", "application/json")
		res, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		buf := make([]byte, 1000)
		for i := range 4 {
			if n, err := res.Body.Read(buf); n == 0 {
				t.Fatalf("part %d: %v", i, err)
			}
			seen <- struct{}{}
		}
		if n, err := res.Body.Read(buf); n != 0 || err != io.EOF {
			t.Errorf("behind the last: %d bytes, %v", n, err)
		}
		await(t, handled, "the end at the gateway")
		if got := left(t, l)["tokens"]; got != "997" {
			t.Errorf("%s tokens left, want 997", got)
		}
	}
}

// However a client disguises a call, the gateway books the usage in its response.
func TestCallsInDisguise(t *testing.T) {
	const used = `{"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}`
	for name, c := range map[string]struct {
		header  [2]string
		body    string
		reserve string // tokens left while the call is in flight
	}{
		"as text":                {[2]string{"Content-Type", "text/plain;charset=UTF-8"}, chat, "9898"},
		"as nothing":             {[2]string{"Content-Type", ""}, chat, "9898"},
		"as a form":              {[2]string{"Content-Type", "multipart/form-data; boundary=x"}, chat, "9898"},
		"as bytes":               {[2]string{"Content-Type", "application/octet-stream"}, chat, "9898"},
		"padded":                 {[2]string{"X", "y"}, chat[:len(chat)-1] + strings.Repeat(" ", maxHead) + "}", "9875"}, // a quarter of the blanks is reserved as input
		"with a picture":         {[2]string{"X", "y"}, strings.Replace(chat, `}]`, `, "image": "`+strings.Repeat("A", maxHead)+`"}]`, 1), "9898"},
		"with a media type of x": {[2]string{"Content-Type", "application/vnd.x+json"}, chat, "9898"},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if got := left(t, l)["tokens"]; got != c.reserve {
					t.Errorf("meanwhile %s tokens are left, want %s", got, c.reserve)
				}
				jsonAnswer(used)(w, r)
			}, setup{limiter: l})
			req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(c.body))
			req.Header.Set("Content-Type", "application/json")
			if req.Header.Set(c.header[0], c.header[1]); c.header[1] == "" {
				delete(req.Header, c.header[0])
			}
			d.doWhole(t, req)
			if got := left(t, l)["tokens"]; got != "9988" {
				t.Errorf("%s tokens left, want 9988", got)
			}
		})
	}
}

// If a client leaves during a response, the gateway books the input reported so far if it is more than was estimated.
func TestClientThatLeavesPaysForItsInput(t *testing.T) {
	for name, c := range map[string]struct{ start, left string }{
		"more than was thought": {`{"input_tokens":500,"output_tokens":1}`, "9400"}, // the 100 tokens of output stay reserved
		"less":                  {`{"input_tokens":1,"output_tokens":1}`, "9898"},
	} {
		t.Run(name, func(t *testing.T) {
			handled := make(chan struct{}, 1)
			l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":%s}}\n\n", c.start)
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}, setup{limiter: l, handled: handled})
			ctx, leave := context.WithCancel(t.Context())
			req := d.request(t, "POST", "/v1/messages", strings.NewReader(chat)).WithContext(ctx)
			req.Header.Set("Content-Type", "application/json")
			res, err := d.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(res.Body)
			for range 3 {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			leave()
			res.Body.Close()
			await(t, handled, "the end at the gateway")
			if got := left(t, l)["tokens"]; got != c.left {
				t.Errorf("%s tokens left, want %s", got, c.left)
			}
		})
	}
}

// If the upstream refuses a call, all of its reservation is given back, and it still counts as a request.
func TestRefusedCallsAreFree(t *testing.T) {
	standard := daily("pictures", 10)
	standard.Default = counter.Whole(2)
	l := limiterOf(t, weir.Options{}, requests, daily("tokens", 10_000), standard)
	d, _ := metering(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, setup{limiter: l})
	d.ask(t, "/v1/chat/completions", chat)
	if got := left(t, l); got["tokens"] != "10000" || got["pictures"] != "10" || got["requests"] != "999" {
		t.Errorf("left: %v", got)
	}
}

// If the upstream reports an error after the model has run, the gateway books the usage in the error.
func TestErrorsWithAUsageAreBooked(t *testing.T) {
	const used = `"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}`
	for answer, want := range map[string]string{
		`{"error": {"code": "content_filter"}, ` + used + `}`: "9988",
		`{"error": {"code": "content_filter"}}`:               "10000",
		"data: {\"choices\": []}\n\n":                         "10000",
		"data: {" + used + "}\n\ndata: [DONE]\n\n":            "9988",
		"<html>": "10000",
		"":       "10000",
	} {
		l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
		d, _ := metering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(422)
			_, _ = io.WriteString(w, answer)
		}, setup{limiter: l})
		d.ask(t, "/v1/chat/completions", chat)
		if got := left(t, l)["tokens"]; got != want {
			t.Errorf("%q: %s tokens left, want %s", answer, got, want)
		}
	}
}

// On a path that it doesn't know, the gateway can't tell which limit in the body the API obeys. So it reserves as much
// as it would without a limit, or what the limits allow if that is more.
func TestLimitsOnUnknownPaths(t *testing.T) {
	byDefault := daily("tokens", 10_000)
	byDefault.Default = counter.Whole(500)
	for name, c := range map[string]struct {
		path, limit string
		rule        weir.Rule
		learned     int64
		left        string // tokens left while the call is in flight
	}{
		"a known path":     {"/v1/chat/completions", `"max_tokens": 100`, daily("tokens", 10_000), 0, "9898"},
		"low":              {"/llm", `"max_tokens": 100`, daily("tokens", 10_000), 0, "5902"},
		"another's, low":   {"/llm", `"options": {"num_predict": 1}`, daily("tokens", 10_000), 0, "5902"},
		"high":             {"/llm", `"max_tokens": 9000`, daily("tokens", 10_000), 0, "998"},
		"learned":          {"/llm", `"max_tokens": 100`, daily("tokens", 10_000), 700, "9298"},
		"below a default":  {"/llm", `"max_tokens": 100`, byDefault, 0, "9500"},
		"above a default":  {"/llm", `"max_tokens": 2000`, byDefault, 0, "7998"},
		"more than a rule": {"/llm", `"max_tokens": 90000`, daily("tokens", 10_000), 0, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, c.rule)
			d, _ := metering(t, func(http.ResponseWriter, *http.Request) {
				if got := left(t, l)["tokens"]; got != c.left {
					t.Errorf("%s tokens left, want %s", got, c.left)
				}
			}, setup{limiter: l})
			for range enough {
				if c.learned > 0 {
					d.gateway.opts.Learned.learn("gpt-small", 1, c.learned)
				}
			}
			if a := d.ask(t, c.path, strings.Replace(chat, `"max_tokens": 100`, c.limit, 1)); a.StatusCode != 200 {
				t.Errorf("%s: %s", a.Status, a.body)
			}
		})
	}
}

// A call that waits in a queue has its body read ahead a second time. The upstream is still asked for its usage.
func TestUsageBehindAQueue(t *testing.T) {
	queue := weir.Rule{ID: "queue", By: []string{"ip"}, Algorithm: weir.LeakyQueue, MaxDelay: time.Minute, Limits: []weir.Limit{{Count: 20, Window: time.Second}}}
	bodies := make(chan string, 10)
	d, _ := metering(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
	}, setup{limiter: limiterOf(t, weir.Options{}, queue, daily("tokens", 10_000))})
	for range 4 {
		d.ask(t, "/v1/chat/completions", strings.Replace(chat, "{", `{"stream": true, `, 1))
		if got := await(t, bodies, "the request"); !strings.Contains(got, `"include_usage":true`) || !strings.HasSuffix(got, chat[1:]) {
			t.Errorf("the upstream got %s", got)
		}
	}
}

// A response that breaks off reports no usage, so the estimate stays booked.
func TestUpstreamThatBreaksOffKeepsTheEstimate(t *testing.T) {
	handled := make(chan struct{}, 1)
	l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
	d, _ := metering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `{"usage": {"prompt_tokens": 7`)
	}, setup{limiter: l, handled: handled})
	req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(chat))
	res, err := d.client.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if err == nil {
		t.Error("half an answer is whole")
	}
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["tokens"]; got != "9898" {
		t.Errorf("%s tokens left, want 9898", got)
	}
}

// A WebSocket holds its slot until it is closed.
func TestSlotsOfWebSockets(t *testing.T) {
	done, handled := make(chan error, 1), make(chan struct{}, 10)
	up := startUpstream(t, echoing(t, done))
	slots := weir.Rule{ID: "slots", By: []string{"ip"}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1}}}
	l := limiterOf(t, weir.Options{}, slots)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	conn, _, err := dialWebSocket(t, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, res, err := dialWebSocket(t, d); err == nil || res == nil || res.StatusCode != 429 {
		t.Errorf("a second WebSocket: %v, %v", res, err)
	}
	await(t, handled, "the refusal")
	conn.CloseNow()
	await(t, done, "the upstream's end")
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["slots"]; got != "1" {
		t.Errorf("%s slots left", got)
	}
}

// A stream that reports no usage is booked by its length, whatever request caused it. Otherwise a client could get the
// output for free.
func TestStreamsWithoutUsage(t *testing.T) {
	const events = 3000
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		if r.Header.Get("X-Packed") != "" {
			w.Header().Set("Content-Encoding", "br")
			_, _ = w.Write(make([]byte, events))
			return
		}
		for range events {
			fmt.Fprint(w, "data: {\"choices\": [{\"delta\": {\"content\": \"word\"}}]}\n\n")
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	stream := `{"model": "gpt-small", "stream": true, "max_tokens": 1, "messages": []}`
	for name, c := range map[string]struct {
		path, body string
		header     http.Header
	}{
		"plain":            {"/v1/completions", stream, nil},
		"sealed":           {"/v1/chat/completions", stream, http.Header{"Content-Md5": {"x"}}},
		"behind blanks":    {"/v1/chat/completions", "{" + strings.Repeat(" ", 1<<20) + stream[1:], nil},
		"limit and blanks": {"/v1/chat/completions", `{"max_completion_tokens": 1,` + strings.Repeat(" ", 1<<20) + stream[1:], nil},
		"a form":           {"/v1/chat/completions", stream, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}},
		"packed answer":    {"/v1/chat/completions", stream, http.Header{"X-Packed": {"yes"}}},
		"another path":     {"/v1/chat//Completions", stream, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("tokens", 1_000_000))
			handled := make(chan struct{}, 1)
			d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
			req := d.request(t, "POST", c.path, strings.NewReader(c.body))
			req.Header.Set("Content-Type", "application/json")
			for field, values := range c.header {
				req.Header[field] = values
			}
			res, err := d.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			await(t, handled, "the end at the gateway")
			left, err := strconv.Atoi(left(t, l)["tokens"])
			if took := 1_000_000 - left; err != nil || took < events || took > events+1<<20 {
				t.Errorf("%d tokens were booked for %d, %v", took, events, err)
			}
		})
	}
}

// If the estimate learned from earlier responses exceeds the limit's capacity, the request is still admitted.
func TestLearnedMoreThanALimitHolds(t *testing.T) {
	up := startUpstream(t, jsonAnswer(`{"usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}}`))
	l := limiterOf(t, weir.Options{}, daily("tokens", 1_000))
	handled := make(chan struct{}, 1)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	for range enough {
		d.gateway.opts.Learned.learn("gpt-small", 1, 20_000)
	}
	if a := d.ask(t, "/v1/chat/completions", strings.Replace(chat, `"max_tokens": 100, `, "", 1)); a.StatusCode != 200 {
		t.Errorf("%d: %s", a.StatusCode, a.body)
	}
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["tokens"]; got != "995" {
		t.Errorf("%s tokens left", got)
	}
	if a := d.ask(t, "/v1/chat/completions", strings.Replace(chat, `100`, `20000`, 1)); a.StatusCode != 429 {
		t.Errorf("a request whose own limit exceeds the budget got %d", a.StatusCode)
	}
}
