package gateway

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// pricedLimiter counts money: small costs 1 usd per million tokens, and large 100.
func pricedLimiter(t *testing.T, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	price := func(model string, each int64) weir.Sum {
		return weir.Sum{Name: model, Parts: []weir.Weight{{Amount: "input", Each: each * 1e6}, {Amount: "output", Each: each * 1e6}}}
	}
	set, err := weir.Compile(weir.Rules{Rules: rules, Prices: []weir.Sum{price("small", 1), price("large", 100)}})
	if err != nil {
		t.Fatal(err)
	}
	return weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
}

// million answers with a usage of a million tokens.
func million(model string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		jsonAnswer(fmt.Sprintf(`{%s"usage": {"prompt_tokens": 500000, "completion_tokens": 500000, "total_tokens": 1000000}}`, model))(w, r)
	}
}

const mebibyte = 1 << 20

// If a request may mean two models, the gateway bills the more expensive one, or refuses the request before the
// upstream has the whole body.
func TestTheMoreExpensiveModelIsBilled(t *testing.T) {
	blanks := strings.Repeat(" ", mebibyte+1)
	for name, c := range map[string]struct {
		path, body, answer string
		status             int
		left               string // of 1000 usd
	}{
		"small":                              {"/v1/chat/completions", `{"model": "small"}`, "", 200, "999"},
		"large":                              {"/v1/chat/completions", `{"model": "large"}`, "", 200, "900"},
		"twice":                              {"/v1/chat/completions", `{"model": "small", "model": "large"}`, "", 400, "1000"},
		"behind a MiB of blanks":             {"/v1/chat/completions", `{"model": "small",` + blanks + `"model": "large"}`, "", 400, "1000"},
		"on another path":                    {"/v1/messages", `{"model": "small",` + blanks + `"model": "large"}`, "", 400, "1000"},
		"small behind blanks":                {"/v1/chat/completions", `{` + blanks + `"model": "small"}`, "", 200, "999"},
		"large behind blanks":                {"/v1/chat/completions", `{` + blanks + `"model": "large"}`, "", 200, "900"},
		"behind NaN":                         {"/v1/chat/completions", `{"model": "small", "top_p": NaN, "model": "large"}`, "", 400, "1000"},
		"NaN behind blanks":                  {"/v1/chat/completions", `{"model": "small",` + blanks + `"top_p": NaN, "model": "large"}`, "", 400, "1000"},
		"in capitals":                        {"/v1/chat/completions", `{"model": "small", "MODEL": "large"}`, "", 400, "1000"},
		"in capitals alone":                  {"/v1/chat/completions", `{"Model": "large"}`, "", 400, "1000"},
		"in capitals, behind blanks":         {"/v1/chat/completions", `{"model": "small",` + blanks + `"Model": "large"}`, "", 400, "1000"},
		"escaped":                            {"/v1/chat/completions", `{"model": "small", "mod\u0065l": "large"}`, "", 400, "1000"},
		"escaped alone":                      {"/v1/chat/completions", `{"mod\u0065l": "l\u0061rge"}`, "", 200, "900"},
		"two documents":                      {"/v1/chat/completions", `{"model": "small"} {"model": "large"}`, "", 400, "1000"},
		"two documents, far apart":           {"/v1/chat/completions", `{"model": "small"}` + blanks + `{"model": "large"}`, "", 400, "1000"},
		"Azure":                              {"/openai/deployments/large/chat/completions", `{"model": "small"}`, "", 200, "900"},
		"Azure, the other way":               {"/openai/deployments/small/chat/completions", `{"model": "large"}`, "", 200, "900"},
		"Azure, through small":               {"/openai/deployments/small/../large/chat/completions", `{"model": "small"}`, "", 200, "900"},
		"Azure, escaped":                     {"/openai/deployments/small/%2e%2e/large/chat/completions", `{"model": "small"}`, "", 200, "900"},
		"Gemini, through small":              {"/v1beta/models/small:x/../large:generateContent", `{"model": "small"}`, "", 200, "900"},
		"Vertex, its endpoint":               {"/v1/projects/p/locations/l/endpoints/large/chat/completions", `{"model": "small"}`, "", 200, "900"},
		"Azure in capitals":                  {"/OpenAI/Deployments/large/chat/completions", `{"model": "small"}`, "", 200, "900"},
		"Bedrock":                            {"/model/large/invoke", `{"model": "small"}`, "", 200, "900"},
		"Bedrock's streams":                  {"/model/large/converse-stream", `{"model": "small"}`, "", 200, "900"},
		"Vertex":                             {"/v1/projects/p/locations/l/publishers/anthropic/models/large:rawPredict", `{"model": "small"}`, "", 200, "900"},
		"Gemini":                             {"/v1beta/models/large:generateContent", `{"model": "small"}`, "", 200, "900"},
		"one of several":                     {"/v1/chat/completions", `{"model": "small", "models": ["small", "large"]}`, "", 200, "900"},
		"several alone":                      {"/v1/chat/completions", `{"models": ["small"]}`, "", 200, "999"},
		"a fallback":                         {"/v1/chat/completions", `{"model": "small", "fallbacks": [{"model": "large"}]}`, "", 200, "900"},
		"LiteLLM's fallback":                 {"/v1/chat/completions", `{"model": "small", "fallbacks": [{"small": ["large"]}]}`, "", 200, "900"},
		"a fallback for long texts":          {"/v1/chat/completions", `{"model": "small", "context_window_fallbacks": [{"small": ["large"]}]}`, "", 200, "900"},
		"the model that fails":               {"/v1/chat/completions", `{"model": "small", "fallbacks": [{"large": ["small"]}]}`, "", 200, "999"},
		"a fallback's own text":              {"/v1/chat/completions", `{"model": "small", "fallbacks": [{"model": "small", "effort": "low", "messages": [{"content": "large"}]}]}`, "", 200, "999"},
		"a fallback's own limit":             {"/v1/chat/completions", `{"model": "small", "max_tokens": 1, "fallbacks": [{"model": "small", "max_tokens": 1000}]}`, "", 400, "1000"},
		"a fallback in capitals":             {"/v1/chat/completions", `{"model": "small", "fallbacks": [{"MODEL": "large"}]}`, "", 400, "1000"},
		"several twice":                      {"/v1/chat/completions", `{"model": "small", "models": [], "models": ["large"]}`, "", 400, "1000"},
		"too many":                           {"/v1/chat/completions", `{"model": "small", "models": [` + strings.Repeat(`"small", `, 16) + `"large"]}`, "", 400, "1000"},
		"in the query":                       {"/v1/chat/completions?model=large", `{"model": "small"}`, "", 200, "900"},
		"the response names large":           {"/v1/chat/completions", `{"model": "small"}`, `"model": "large", `, 200, "900"},
		"the response names small":           {"/v1/chat/completions", `{"model": "large"}`, `"model": "small", `, 200, "900"},
		"a version of small in the response": {"/v1/chat/completions", `{"model": "small"}`, `"model": "small-2024-07-18", `, 200, "999"},
		"only the response names a model":    {"/v1/chat/completions", `{"messages": []}`, `"model": "small", `, 200, "999"},
		"no model anywhere":                  {"/v1/chat/completions", `{"messages": []}`, "", 200, "900"},
		"a model without a price":            {"/v1/chat/completions", `{"model": "medium"}`, "", 200, "900"},
		"the name in capitals":               {"/v1/chat/completions", `{"model": "LARGE"}`, "", 200, "900"},
		"a list as the model":                {"/v1/chat/completions", `{"model": ["large"]}`, "", 200, "900"},
		"a decoy":                            {"/v1/chat/completions", `{"messages": [{"model": "small"}], "model": "large"}`, "", 200, "900"},
		"a picture of 20 MiB":                {"/v1/chat/completions", `{"messages": [{"content": [{"image_url": {"url": "` + strings.Repeat("A", 20*mebibyte) + `"}}]}], "model": "small"}`, "", 200, "999"},
		"a picture, and then the models":     {"/v1/chat/completions", `{"messages": [{"content": [{"image_url": {"url": "` + strings.Repeat("A", 2*mebibyte) + `"}}]}], "model": "small", "model": "large"}`, "", 400, "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			l := pricedLimiter(t, daily("usd", 1000))
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil && c.status != 200 {
					t.Error("the upstream has the whole body")
				}
				million(c.answer)(w, r)
			}, setup{limiter: l})
			a := d.ask(t, c.path, c.body)
			if a.StatusCode != c.status || left(t, l)["usd"] != c.left {
				t.Errorf("%d with %s usd left, want %d with %s; %s", a.StatusCode, left(t, l)["usd"], c.status, c.left, a.body)
			}
			if a.StatusCode != 200 {
				wantError(t, a, 400, "BAD_REQUEST")
			}
		})
	}
}

// Request bodies are metered under every method, including by rules that name a method.
func TestEveryMethodIsMetered(t *testing.T) {
	named := daily("usd", 1000)
	named.Match.Endpoint = "POST /v1/chat/completions"
	for _, rule := range []weir.Rule{daily("usd", 1000), named} {
		for _, method := range []string{"POST", "post", "PUT", "PATCH", "GET", "DELETE", "QUERY", "brew"} {
			l := pricedLimiter(t, rule)
			d, up := metering(t, million(""), setup{limiter: l})
			for _, chunked := range []bool{false, true} {
				body := io.Reader(strings.NewReader(`{"model": "large"}`))
				if chunked {
					body = io.MultiReader(body)
				}
				if a := d.doWhole(t, d.request(t, method, "/v1/chat/completions", body)); a.StatusCode != 200 || up.last(t).Method != method {
					t.Errorf("%s: %d", method, a.StatusCode)
				}
			}
			if got := leftAt(t, l, "/v1/chat/completions")["usd"]; got != "800" {
				t.Errorf("%s: %s usd left", method, got)
			}
		}
	}
	l := pricedLimiter(t, named)
	d, _ := metering(t, million(""), setup{limiter: l})
	if a := d.get(t, "/v1/chat/completions"); a.StatusCode != 200 || leftAt(t, l, "/v1/chat/completions")["usd"] != "1000" {
		t.Errorf("without a body: %d", a.StatusCode)
	}
}

// A rule that counts by model also applies to requests that hide their model.
func TestRulesByModelHoldForHiddenModels(t *testing.T) {
	rule := daily("tokens", 10_000)
	rule.By, rule.Missing = []string{"ip", "attr:model"}, weir.MissingSkip
	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--x--\r\n"
	for name, c := range map[string]struct {
		contentType, body string
		first, second     int
	}{
		"named":                {"application/json", `{"model": "small", "max_tokens": 6000}`, 200, 429},
		"twice":                {"application/json", `{"model": "small", "model": "large"}`, 400, 400},
		"behind NaN":           {"application/json", `{"top_p": NaN, "model": "large"}`, 400, 400},
		"in UTF-16":            {"application/json", encoded(binary.BigEndian, 2, `{"model": "large"}`), 400, 400},
		"a long name":          {"application/json", `{"model": "` + strings.Repeat("x", 2000) + `"}`, 400, 400},
		"behind a picture":     {"application/json", `{"x": "` + strings.Repeat("A", 2*mebibyte) + `", "model": "large"}`, 200, 429},
		"in a form":            {"multipart/form-data; boundary=x", form, 200, 429},
		"no model, so skipped": {"application/json", `{"max_tokens": 6000}`, 200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				jsonAnswer(`{"usage": {"prompt_tokens": 0, "completion_tokens": 9000, "total_tokens": 9000}}`)(w, r)
			}, setup{limiter: limiterOf(t, weir.Options{}, rule)})
			for i, want := range []int{c.first, c.second} {
				req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(c.body))
				req.Header.Set("Content-Type", c.contentType)
				if a := d.doWhole(t, req); a.StatusCode != want {
					t.Errorf("call %d: %d %s, want %d", i+1, a.StatusCode, a.body, want)
				}
			}
		})
	}
}

// A client can't make a request count as one for another model by naming that model where upstreams don't look.
func TestRulesByModelHoldForDecoys(t *testing.T) {
	rule := daily("tokens", 10_000)
	rule.By = []string{"ip", "attr:model"}
	for name, c := range map[string]struct{ path, body string }{
		"in the query":                   {"/v1/chat/completions?model=%d", `{"model": "large", "max_tokens": 6000}`},
		"a deployment in the query":      {"/v1/chat/completions?deployment=%d", `{"model": "large", "max_tokens": 6000}`},
		"in the query, behind a picture": {"/v1/chat/completions?model=%d", `{"max_tokens": 6000, "x": "` + strings.Repeat("A", 2*mebibyte) + `", "model": "large"}`},
		"into a deployment and out":      {"/deployments/%d/../../v1/chat/completions", `{"model": "large", "max_tokens": 6000}`},
		"through another deployment":     {"/openai/deployments/%d/../large/chat/completions", `{"max_tokens": 6000}`},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				jsonAnswer(`{"usage": {"prompt_tokens": 0, "completion_tokens": 6000, "total_tokens": 6000}}`)(w, r)
			}, setup{limiter: limiterOf(t, weir.Options{}, rule)})
			for i, want := range []int{200, 429} {
				if a := d.ask(t, fmt.Sprintf(c.path, i), c.body); a.StatusCode != want {
					t.Errorf("call %d: %d %s, want %d", i+1, a.StatusCode, a.body, want)
				}
			}
		})
	}
}

func encoded(order binary.AppendByteOrder, size int, text string) string {
	var b []byte
	for _, c := range utf16.Encode([]rune(text)) {
		if size == 2 {
			b = order.AppendUint16(b, c)
		} else {
			b = order.AppendUint32(b, uint32(c))
		}
	}
	return string(b)
}

// Out of 40 concurrent calls, only as many reach the upstream as the budget has room for, however the bodies are
// written.
func TestParallelCallsCantPassABudget(t *testing.T) {
	const open = `{"model": "small", "messages": [{"role": "user", "content": "hi"}]}`
	const limited = `{"model": "small", "max_tokens": 1000}`
	blanks := strings.Repeat(" ", mebibyte+1)
	byDefault := func(rule weir.Rule) weir.Rule {
		rule.Default = counter.Whole(1000)
		return rule
	}
	dollars := daily("usd", 10) // 1,000 tokens of large cost 0.1
	dollars.Default = counter.Whole(1)
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("model", "small")
	_ = parts.Close()
	for name, c := range map[string]struct {
		body, contentType string
		rule              weir.Rule
		min, max          int // calls that reach the upstream
	}{
		"with a limit":            {limited, "", daily("tokens", 10_000), 10, 10},
		"with a byte order mark":  {"\ufeff" + limited, "", daily("tokens", 10_000), 0, 0},
		"in UTF-16":               {encoded(binary.LittleEndian, 2, limited), "", daily("tokens", 10_000), 0, 0},
		"in UTF-16, marked":       {encoded(binary.BigEndian, 2, "\ufeff"+limited), "", daily("tokens", 10_000), 0, 0},
		"in UTF-32":               {encoded(binary.BigEndian, 4, limited), "", daily("tokens", 10_000), 0, 0},
		"with NaN first":          {`{"top_p": NaN, ` + limited[1:], "", daily("tokens", 10_000), 0, 0},
		"as a form":               {limited, "application/x-www-form-urlencoded", daily("tokens", 10_000), 10, 10},
		"as bytes":                {limited, "application/octet-stream", daily("tokens", 10_000), 10, 10},
		"a real form":             {"model=small&max_tokens=1000", "application/x-www-form-urlencoded", daily("tokens", 10_000), 0, 0},
		"a multipart form":        {form.String(), parts.FormDataContentType(), daily("tokens", 10_000), 2, 2},
		"two limits":              {`{"max_tokens": 1, ` + blanks + limited[1:], "", daily("tokens", 1_000_000), 0, 0},
		"two limits, by names":    {`{"max_tokens": 1, ` + blanks + `"max_completion_tokens": 1000}`, "", daily("tokens", 1_000_000), 0, 0},
		"many choices later":      {`{"max_tokens": 1, ` + blanks + `"n": 1000}`, "", daily("tokens", 1_000_000), 0, 0},
		"a model not seen before": {open, "", daily("tokens", 10_000), 2, 2},
		"many choices":            {`{"n": 10, ` + open[1:], "", daily("tokens", 100_000), 2, 2},
		"many more":               {`{"model": "small", "n": 1e300, "messages": []}`, "", daily("tokens", 10_000), 1, 1},
		"choices with a default":  {`{"model": "small", "n": 10, "messages": []}`, "", byDefault(daily("tokens", 20_000)), 2, 2},
		"with a default":          {open, "", byDefault(daily("tokens", 10_000)), 10, 10},
		"money with a default":    {open, "", dollars, 10, 10},
		"money with a limit":      {`{"model": "large", "max_tokens": 10000}`, "", daily("usd", 10), 10, 10},
		"another API's limit":     {`{"max_gen_len": 1, "options": {"num_predict": 1}, ` + open[1:], "", daily("tokens", 10_000), 2, 2},
		"in another's object":     {`{"parameters": {"max_tokens": 1}, "generationConfig": {"max_tokens": 1}, ` + open[1:], "", daily("tokens", 10_000), 2, 2},
		"a limit that is null":    {`{"max_tokens": null, "max_output_tokens": 1, ` + open[1:], "", daily("tokens", 10_000), 2, 2},
		"another API's, high":     {`{"max_output_tokens": 9000}`, "", daily("tokens", 20_000), 2, 2},
		"another API's, higher":   {`{"max_tokens": 1, "n_predict": 1000}`, "", daily("tokens", 10_000), 10, 10},
		"no model and no text":    {`{"messages": []}`, "", daily("tokens", 10_000), 2, 2},
		"nothing but a stream":    {`{"stream": true}`, "", daily("tokens", 10_000), 2, 2},
		"a list":                  {"[" + limited + "]", "", daily("tokens", 10_000), 2, 2},
		"no call to a model":      {`{"customer": 17}`, "", daily("tokens", 10_000), 40, 40},
		"a small budget":          {open, "", daily("tokens", 2_000), 1, 1},
		"text of 2 MiB, chunked":  {`{"model": "small", "max_tokens": 1, "prompt": "` + strings.Repeat("word", mebibyte/2) + `"}`, "", daily("tokens", 600_000), 0, 0},
		"long names":              {`{"max_tokens": 1, "tools": [{"parameters": {"` + strings.Repeat("word", 10_000) + `": 1}}]}`, "", daily("tokens", 40_000), 3, 3},
		"text of 2 MiB":           {`{"model": "small", "max_tokens": 1, "x": [],` + blanks + `"prompt": "` + strings.Repeat("word", mebibyte/4) + `"}`, "", daily("tokens", 600_000), 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 40
			if len(c.body) > mebibyte {
				calls = 5 // the gateway's memory for bodies has room for no more
			}
			begun, end := make(chan struct{}, calls), make(chan struct{})
			answered := make(chan struct{}, calls)
			d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return
				}
				begun <- struct{}{}
				<-end
				jsonAnswer(`{"usage": {"prompt_tokens": 1, "completion_tokens": 999, "total_tokens": 1000}}`)(w, r)
			}, setup{limiter: pricedLimiter(t, c.rule)})
			for range calls {
				go func() {
					defer func() { answered <- struct{}{} }()
					req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(c.body))
					if strings.HasSuffix(name, "chunked") {
						req.ContentLength = -1
					}
					if req.Header.Set("Content-Type", "application/json"); c.contentType != "" {
						req.Header.Set("Content-Type", c.contentType)
					}
					if res, err := d.client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				}()
			}
			through := 0
			for refused := 0; through+refused < calls && !t.Failed(); {
				select {
				case <-begun:
					through++
				case <-answered:
					refused++
				case <-t.Context().Done():
				}
			}
			close(end)
			for range through {
				await(t, answered, "an answer")
			}
			if through < c.min || through > c.max {
				t.Errorf("%d of %d reached the upstream, want %d to %d", through, calls, c.min, c.max)
			}
		})
	}
}

// A client can't switch off metering through headers, its path or its query. Calls whose work would be done later are
// refused.
func TestMeteringCantBeSwitchedOff(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Usage", r.Header.Get("X-Usage")) // like a server that echoes a request header
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "data: {}")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 500 {
			io.WriteString(w, "data: {\"choices\": [{\"delta\": {\"content\": \"several words at once\"}}]}\n\n")
		}
		if bytes.Contains(body, []byte(`"include_usage":true`)) {
			io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":5200,\"total_tokens\":5225}}\n\n")
		}
		io.WriteString(w, "data: [DONE]\n\n")
	})
	zipped := func(text string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return b.String()
	}
	const stream = `{"model": "small", "stream": true, "max_tokens": 6000, "messages": []}`
	for name, c := range map[string]struct {
		path, body string
		header     http.Header
		status     int
		took       int64
	}{
		"nothing":                     {"/v1/chat/completions", stream, nil, 200, 5225},
		"Content-MD5":                 {"/v1/chat/completions", stream, http.Header{"Content-Md5": {"x"}}, 200, 5225},
		"Digest":                      {"/v1/chat/completions", stream, http.Header{"Digest": {"x"}}, 200, 5225},
		"Content-Digest":              {"/v1/chat/completions", stream, http.Header{"Content-Digest": {"x"}}, 200, 5225},
		"Signature":                   {"/v1/chat/completions", stream, http.Header{"Signature-Input": {"x"}, "Signature": {"x"}}, 200, 5225},
		"AWS":                         {"/v1/chat/completions", stream, http.Header{"X-Amz-Content-Sha256": {"x"}}, 200, 5225},
		"usage from the client":       {"/v1/chat/completions", stream, http.Header{"X-Usage": {"1"}}, 200, 5225},
		"Accept-Encoding":             {"/v1/chat/completions", stream, http.Header{"Accept-Encoding": {"gzip"}}, 200, 5225},
		"a part":                      {"/v1/chat/completions", stream, http.Header{"Range": {"bytes=0-1000000"}}, 200, 5225},
		"include_usage: false":        {"/v1/chat/completions", strings.Replace(stream, "{", `{"stream_options": {"include_usage":false}, `, 1), nil, 200, 5225},
		"include_usage: false, later": {"/v1/chat/completions", `{"x": "` + strings.Repeat("A", 2*mebibyte) + `", "stream_options": {"include_usage": false}, ` + stream[1:], nil, 400, 0},
		"behind a picture":            {"/v1/chat/completions", `{"x": "` + strings.Repeat("A", 2*mebibyte) + `", ` + stream[1:], nil, 200, 5225},
		"stream is a string":          {"/v1/chat/completions", strings.Replace(stream, "true", `"yes"`, 1), nil, 200, 5225},
		"a completion":                {"/v1/completions", strings.Replace(stream, `"messages": []`, `"prompt": "hi"`, 1), nil, 200, 5225},
		"a path in capitals":          {"/v1/chat//Completions", stream, nil, 200, 5225},
		"gzip":                        {"/v1/chat/completions", zipped(stream), http.Header{"Content-Encoding": {"gzip"}}, 415, 0},
		"gzip and identity":           {"/v1/chat/completions", zipped(stream), http.Header{"Content-Encoding": {"identity", "gzip"}}, 415, 0},
		"gzip in disguise":            {"/v1/chat/completions", zipped(stream), nil, 400, 0},
		"zstd":                        {"/v1/chat/completions", stream, http.Header{"Content-Encoding": {"zstd"}}, 415, 0},
		"gRPC":                        {"/v1/chat/completions", stream, http.Header{"Content-Type": {"application/grpc"}}, 415, 0},
		"UTF-7":                       {"/v1/chat/completions", `{"+AG0-odel": "large", ` + stream[1:], http.Header{"Content-Type": {"application/json; charset=UTF-7"}}, 415, 0},
		"UTF-7, then UTF-8":           {"/v1/chat/completions", stream, http.Header{"Content-Type": {"application/json; charset=utf-7; charset=utf-8"}}, 415, 0},
		"UTF-7 in a line":             {"/v1/chat/completions", stream, http.Header{"Content-Type": {"application/json", "application/json; charset=utf-7"}}, 415, 0},
		"Latin-1":                     {"/v1/chat/completions", stream, http.Header{"Content-Type": {"text/plain; charset=ISO-8859-1"}}, 200, 5225},
		"in the background":           {"/v1/responses", `{"model": "small", "input": "hi", "background": true}`, nil, 400, 0},
		"later in background":         {"/v1/responses", `{"x": "` + strings.Repeat("A", 2*mebibyte) + `", "background": true}`, nil, 400, 0},
		"deferred":                    {"/v1/chat/completions", `{"model": "small", "deferred": true}`, nil, 400, 0},
		"Gemini":                      {"/v1beta/models/small:streamGenerateContent?alt=sse", `{"generationConfig": {"maxOutputTokens": 6000}}`, nil, 200, 6000}, // what was reserved
		"a mask":                      {"/v1beta/models/small:generateContent?fields=candidates", stream, nil, 400, 0},
		"a mask, escaped":             {"/v1beta/models/small:generateContent?key=k&%24fields=candidates", stream, nil, 400, 0},
		"a mask in a header":          {"/v1beta/models/small:generateContent", stream, http.Header{"X-Goog-Fieldmask": {"candidates"}}, 400, 0},
		"another format":              {"/v1beta/models/small:generateContent?$alt=proto", stream, nil, 400, 0},
		"two formats":                 {"/v1beta/models/small:generateContent?alt=sse&alt=proto", stream, nil, 400, 0},
		"a callback":                  {"/v1beta/models/small:generateContent?callback=f", stream, nil, 400, 0},
		"fields of another API":       {"/v1/chat/completions?fields=x", stream, nil, 200, 5225},
		"beside files":                {"/files/v1/chat/completions", "\ufeff" + stream, nil, 400, 0},
		"through files":               {"/v1/files/../chat/completions", "\ufeff" + stream, nil, 400, 0},
		"a realtime session":          {"/v1/realtime/client_secrets", `{"session": {"model": "small"}}`, nil, 400, 0},
		"a run":                       {"/v1/threads/t1/runs", `{"assistant_id": "a"}`, nil, 400, 0},
		"a batch":                     {"/v1/batches", `{"input_file_id": "file-1", "endpoint": "/v1/chat/completions"}`, nil, 400, 0},
		"Anthropic's batch":           {"/v1/messages/batches", `{"requests": []}`, nil, 400, 0},
		"Perplexity's jobs":           {"/async/chat/completions", `{"request": ` + stream + `}`, nil, 400, 0},
		"Gemini's batch":              {"/v1beta/models/small:batchGenerateContent", `{}`, nil, 400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("tokens", 1_000_000))
			d := start(t, setup{upstream: up.URL, limiter: l, opts: Options{UsageHeader: "X-Usage"}})
			req := d.request(t, "POST", c.path, strings.NewReader(c.body))
			req.Header.Set("Content-Type", "application/json")
			for field, values := range c.header {
				req.Header[field] = values
			}
			a := d.doWhole(t, req)
			if got := left(t, l)["tokens"]; a.StatusCode != c.status || got != fmt.Sprint(1_000_000-c.took) {
				t.Errorf("%d with %s tokens left, want %d with %d; %.300s", a.StatusCode, got, c.status, 1_000_000-c.took, a.body)
			}
		})
	}
}

// The gateway refuses WebSockets to paths that are metered, and forwards others.
func TestWebSocketsAreNotMetered(t *testing.T) {
	done := make(chan error, 1)
	up := startUpstream(t, echoing(t, done))
	elsewhere := daily("tokens", 1000)
	elsewhere.Match.Endpoint = "POST /v1/{rest...}"
	for path, refused := range map[string]bool{"/v1/realtime?model=large": true, "/ws": false} {
		d := start(t, setup{upstream: up.URL, limiter: limiterOf(t, weir.Options{}, elsewhere)})
		req := d.request(t, "GET", path, nil)
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"WebSocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		res, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); (res.StatusCode == 400) != refused || (res.StatusCode == 101) == refused {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	await(t, done, "the upstream's end")
}

// Files and forms reach the upstream unchanged.
func TestFormsAndFilesPass(t *testing.T) {
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, _ := parts.CreateFormFile("file", "speech.mp3")
	_, _ = io.CopyN(file, &pattern{}, 2*mebibyte)
	_ = parts.WriteField("model", "small")
	_ = parts.Close()
	lines := `{"custom_id": "1", "model": "small"}` + "\n" + `{"custom_id": "2", "model": "large"}` + "\n"
	for name, c := range map[string]struct{ path, contentType, body, left string }{
		"a transcription":   {"/v1/audio/transcriptions", parts.FormDataContentType(), form.String(), "95904"}, // 4,096 are assumed
		"an upload":         {"/v1/files", "application/octet-stream", "\x00\x01\x02", "100000"},
		"lines":             {"/upload/v1beta/files", "application/jsonl", lines, "100000"},
		"a picture, edited": {"/v1/images/edits", parts.FormDataContentType(), form.String(), "95904"},
	} {
		l := limiterOf(t, weir.Options{}, daily("tokens", 100_000))
		bodies := make(chan string, 1)
		d, _ := metering(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			bodies <- string(b)
			jsonAnswer(`{"text": "hello"}`)(w, r)
		}, setup{limiter: l})
		req := d.request(t, "POST", c.path, strings.NewReader(c.body))
		req.Header.Set("Content-Type", c.contentType)
		if a := d.doWhole(t, req); a.StatusCode != 200 {
			t.Fatalf("%s: %d %s", name, a.StatusCode, a.body)
		}
		if got := await(t, bodies, "the request"); got != c.body || left(t, l)["tokens"] != c.left {
			t.Errorf("%s: %d bytes of %d arrived, %s tokens are left", name, len(got), len(c.body), left(t, l)["tokens"])
		}
	}
}
