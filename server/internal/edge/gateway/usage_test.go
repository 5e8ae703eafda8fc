package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
)

// daily returns a rule that counts an amount per address, in windows of a day.
func daily(amount string, n int64) weir.Rule {
	return weir.Rule{
		ID: amount, By: []string{"ip"}, Amount: amount, Algorithm: weir.FixedWindow,
		Limits: []weir.Limit{{Count: n, Window: 24 * time.Hour}},
	}
}

// requests is a rule that counts requests, in windows of a day.
var requests = weir.Rule{ID: "requests", By: []string{"ip"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1000, Window: 24 * time.Hour}}}

// left returns what is left of a client's limits, by amount.
func left(t *testing.T, l *weir.Limiter) map[string]string {
	t.Helper()
	return leftAt(t, l, "")
}

func leftAt(t *testing.T, l *weir.Limiter, path string) map[string]string {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{IP: netip.MustParseAddr("127.0.0.1"), Path: path, Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, s := range d.Limits() {
		out[s.Policy.Rule] = s.Left().String()
	}
	return out
}

const chat = `{"model": "gpt-small", "max_tokens": 100, "messages": [{"role": "user", "content": "12345678"}]}`

func (d *door) ask(t *testing.T, path, body string) answer {
	t.Helper()
	req := d.request(t, "POST", path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept-Encoding", "gzip")
	return d.doWhole(t, req)
}

func jsonAnswer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, text)
	}
}

// The gateway books the usage that a response reports. Rules that count requests still count one.
func TestUsageIsSettled(t *testing.T) {
	for name, tt := range map[string]struct {
		path, body string
		answer     http.HandlerFunc
		tokens     string // left of 10,000
	}{
		"openai":                         {"/v1/chat/completions", chat, jsonAnswer(`{"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}`), "9988"},
		"openai, more than was reserved": {"/v1/chat/completions", chat, jsonAnswer(`{"usage": {"prompt_tokens": 7, "completion_tokens": 500, "total_tokens": 507}}`), "9493"},
		"anthropic, streamed": {"/v1/messages", chat, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n")
			http.NewResponseController(w).Flush()
			io.WriteString(w, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":20}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
		}, "9970"},
		"gemini": {"/v1beta/models/gemini-pro:generateContent", `{"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 50}}`,
			jsonAnswer(`{"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7}}`), "9993"},
		"no usage":                 {"/v1/chat/completions", chat, jsonAnswer(`{"choices": []}`), "9898"}, // the reservation: 2 of input and 100 of output
		"a refusal by the model":   {"/v1/chat/completions", chat, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, "10000"},
		"a failure of the model's": {"/v1/chat/completions", chat, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "9898"},
		"in a header":              {"/v1/chat/completions", chat, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Usage", "tokens=33, usd=0.5") }, "9967"},
	} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, tt.answer)
			l := limiterOf(t, weir.Options{}, requests, daily("tokens", 10_000))
			handled := make(chan struct{}, 1)
			d := start(t, setup{upstream: up.URL, limiter: l, opts: Options{UsageHeader: "X-Usage"}, handled: handled})
			d.ask(t, tt.path, tt.body)
			await(t, handled, "the end at the gateway")
			if got := left(t, l); got["tokens"] != tt.tokens || got["requests"] != "999" {
				t.Errorf("left: %v, want %s tokens", got, tt.tokens)
			}
			if enc := up.last(t).Header.Get("Accept-Encoding"); enc != "identity" {
				t.Errorf("the upstream was asked for %q, which can't be read", enc)
			}
		})
	}
}

// Tokens are reserved before the model is called, so parallel requests can't exceed a budget together.
func TestUsageIsReserved(t *testing.T) {
	begun, end := make(chan struct{}, 10), make(chan struct{})
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-end
		jsonAnswer(`{"usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}}`)(w, r)
	})
	l := limiterOf(t, weir.Options{}, daily("tokens", 250)) // enough for two requests of 102 tokens, but not for three
	handled := make(chan struct{}, 10)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	answers := make(chan int, 3)
	for range 2 {
		go func() {
			req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(chat))
			req.Header.Set("Content-Type", "application/json")
			res, err := d.client.Do(req)
			if err != nil {
				t.Error(err)
				answers <- 0
				return
			}
			res.Body.Close()
			answers <- res.StatusCode
		}()
		await(t, begun, "the request's arrival")
	}
	if a := d.ask(t, "/v1/chat/completions", chat); a.StatusCode != 429 {
		t.Errorf("the third request: %d, want 429", a.StatusCode)
	}
	close(end)
	for range 2 {
		if status := await(t, answers, "an answer"); status != 200 {
			t.Errorf("%d, want 200", status)
		}
	}
	for range 3 {
		await(t, handled, "the end at the gateway")
	}
	if a := d.ask(t, "/v1/chat/completions", chat); a.StatusCode != 200 {
		t.Errorf("once the others have settled: %d, want 200", a.StatusCode)
	}
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["tokens"]; got != "235" {
		t.Errorf("%s tokens left, want 235", got)
	}
}

// A streamed chat asks the upstream for its usage, and is otherwise forwarded as the client sent it.
func TestStreamedChatTellsItsUsage(t *testing.T) {
	bodies := make(chan string, 1)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"total_tokens\":3}}\n\ndata: [DONE]\n\n")
	})
	l := limiterOf(t, weir.Options{}, daily("tokens", 1_000_000))
	handled := make(chan struct{}, 10)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	streamed := strings.Replace(chat, "{", `{"stream": true, `, 1)
	d.ask(t, "/v1/chat/completions", streamed)
	if got := await(t, bodies, "the request"); !strings.Contains(got, `"include_usage":true`) && !strings.Contains(got, `"include_usage": true`) {
		t.Errorf("the upstream got %s", got)
	}
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["tokens"]; got != "999997" {
		t.Errorf("%s tokens left, want 999997", got)
	}
	long := `{"messages": [{"content": "` + strings.Repeat("long ", 300_000) + `"}]`
	const ask = `,"stream_options":{"include_usage":true}`
	for body, want := range map[string]string{
		chat:                                  chat,
		long + "}":                            long + strings.Repeat(" ", len(ask)) + "}",
		long + `, "stream": true} `:           long + `, "stream": true` + ask + "} ",
		long + `, "stream": true` + ask + "}": long + `, "stream": true` + ask + strings.Repeat(" ", len(ask)) + "}",
	} {
		d.ask(t, "/v1/chat/completions", body)
		if got := await(t, bodies, "the request"); got != want {
			t.Errorf("a body of %d bytes arrived as one of %d: …%s", len(body), len(got), got[max(0, len(got)-100):])
		}
	}
}

// If a client leaves during a response, its reservation stays booked, because the real usage is unknown.
func TestClientThatLeavesKeepsItsEstimate(t *testing.T) {
	gone := make(chan struct{})
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	handled := make(chan struct{}, 1)
	l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	ctx, leave := context.WithCancel(t.Context())
	req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(chat)).WithContext(ctx)
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	leave()
	res.Body.Close()
	await(t, gone, "the end at the upstream")
	await(t, handled, "the end at the gateway")
	if got := left(t, l)["tokens"]; got != "9898" {
		t.Errorf("%s tokens left, want 9898", got)
	}
}

// If a request sets no limit, the gateway estimates its output from the model's earlier responses.
func TestEstimateIsLearned(t *testing.T) {
	output := 40
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		jsonAnswer(fmt.Sprintf(`{"usage": {"prompt_tokens": 2, "completion_tokens": %d, "total_tokens": %d}}`, output, output+2))(w, r)
	})
	l := limiterOf(t, weir.Options{}, daily("tokens", 1_000))
	handled := make(chan struct{}, 1)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	open := strings.Replace(chat, `"max_tokens": 100, `, "", 1)
	for range enough {
		d.ask(t, "/v1/chat/completions", open)
		await(t, handled, "the end at the gateway")
	}
	if got := left(t, l)["tokens"]; got != fmt.Sprint(1_000-42*enough) {
		t.Fatalf("%s tokens left: what wasn't reserved wasn't booked", got)
	}
	if got, known := d.gateway.opts.Learned.estimate("gpt-small"); !known || got != 40 {
		t.Errorf("learned %d, %v, want 40", got, known)
	}
	d.gateway.opts.Learned.learn("", 1, 1)
	if got, known := d.gateway.opts.Learned.estimate(""); known {
		t.Errorf("learned %d of a model without a name", got)
	}
	for i := range 10 * maxModels {
		d.gateway.opts.Learned.learn(fmt.Sprint("made up ", i), 1, 1)
	}
	if n := len(d.gateway.opts.Learned.models); n > maxModels {
		t.Errorf("%d models are remembered, at most %d may be", n, maxModels)
	}
}

// The gateway doesn't learn from a response to a request with another API's limit, because the server may have obeyed
// it, nor from a response to a request for several choices, because the server may have ignored n.
func TestDoubtfulAnswersArentLearned(t *testing.T) {
	l := limiterOf(t, weir.Options{}, daily("output", 1_000_000))
	during := make(chan string, 1)
	d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
		during <- left(t, l)["output"]
		jsonAnswer(`{"usage": {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}}`)(w, r)
	}, setup{limiter: l})
	for i, body := range []string{`{"model": "m", "n": 2}`, `{"model": "m", "options": {"num_predict": 1}}`, `{"model": "m"}`} {
		d.ask(t, "/v1/chat/completions", body)
		choices := max(1, 2-i)
		if got, want := await(t, during, "the request"), fmt.Sprint(1_000_000-i-choices*assumedOutput); got != want {
			t.Fatalf("call %d: %s left, want %s", i+1, got, want)
		}
	}
}

// The gateway learns the length of one choice. A call reserves that length for each choice that it asks for.
func TestEstimateCountsChoices(t *testing.T) {
	during := make(chan string, 1)
	l := limiterOf(t, weir.Options{}, daily("tokens", 10_000))
	d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
		during <- left(t, l)["tokens"]
		jsonAnswer(`{"usage": {"prompt_tokens": 2, "completion_tokens": 79, "total_tokens": 81}}`)(w, r)
	}, setup{limiter: l})
	for range enough {
		d.ask(t, "/v1/chat/completions", strings.Replace(chat, `"max_tokens": 100`, `"n": 1`, 1))
		await(t, during, "the request")
	}
	before, err := strconv.Atoi(left(t, l)["tokens"])
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{100, 2, 1} {
		d.ask(t, "/v1/chat/completions", strings.Replace(chat, `"max_tokens": 100`, fmt.Sprint(`"n": `, n), 1))
		if got := await(t, during, "the request"); got != fmt.Sprint(before-2-79*n) {
			t.Errorf("%d choices: %s tokens left meanwhile, want %d", n, got, before-2-79*n)
		}
		before -= 81
	}
}

// A slot is released however the request ends.
func TestSlotsAreReleased(t *testing.T) {
	begun, end := make(chan struct{}, 10), make(chan string)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case how := <-end:
			if how == "break" {
				panic(http.ErrAbortHandler)
			}
		case <-r.Context().Done():
		}
	})
	handled := make(chan struct{}, 10)
	slots := weir.Rule{ID: "slots", By: []string{"ip"}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1}}}
	l := limiterOf(t, weir.Options{}, slots)
	d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
	for _, how := range []string{"served", "break", "client leaves"} {
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			req := d.request(t, "POST", "/", nil).WithContext(ctx) // POST, which the client doesn't retry
			if res, err := d.client.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		await(t, begun, "the request's arrival")
		if a := d.get(t, "/"); a.StatusCode != 429 || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: a second request beside it: %d %v, want 429", how, a.StatusCode, a.Header)
		}
		await(t, handled, "the refusal")
		if how == "client leaves" {
			leave()
		} else {
			end <- how
		}
		await(t, done, "the end of the request")
		await(t, handled, "the end at the gateway")
		if got := left(t, l)["slots"]; got != "1" {
			t.Errorf("%s: %s slots left, want 1", how, got)
		}
		leave()
	}
}

// The gateway uses other nodes' estimates for a model until it has enough of its own.
func TestLearnedElsewhere(t *testing.T) {
	var here, there Learned
	for i := range 40 {
		for range min(i+1, enough) {
			there.learn(fmt.Sprint("model-", i), 1, int64(100+i))
		}
	}
	there.learn("model-39", 1, 139) // one response more than the others have
	there.learn(strings.Repeat("long", 100), 1, 1)
	said := there.Say()
	if len(said) != maxTold || said["model-39"] != 139 || said["model-0"] != 0 {
		t.Errorf("%d models are told: %v", len(said), said)
	}
	here.Hear([]map[string]int64{{"model-39": 7, "other": 5}, said, nil})
	for model, want := range map[string]int64{"model-39": 139, "other": 5} {
		if got, known := here.estimate(model); !known || got != want {
			t.Errorf("%s: %d, %v, want %d", model, got, known, want)
		}
	}
	if got := here.Say(); len(got) != 0 {
		t.Errorf("it passes on the estimates of others: %v", got)
	}
	for range enough {
		here.learn("other", 1, 50)
	}
	if got, _ := here.estimate("other"); got != 50 {
		t.Errorf("with responses of its own, it still estimates %d", got)
	}
	here.Hear(nil)
	if got, known := here.estimate("model-39"); known {
		t.Errorf("an estimate of a node that is gone: %d", got)
	}
}
