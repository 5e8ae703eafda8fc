package usage

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	typeJSON   = "application/json; charset=utf-8"
	typeEvents = "text/event-stream"
	typeLines  = "application/x-ndjson"
)

// describe returns a usage on one line: model, then input+cached+output=tokens, then what is special about it.
func describe(u Usage, ok bool) string {
	if !ok {
		return strings.TrimSpace("nothing " + u.Model)
	}
	short := func(a Amount) string {
		if !a.Known {
			return "?"
		}
		return a.String()
	}
	s := fmt.Sprintf("%s %s+%s+%s=%s", u.Model, short(u.Input), short(u.Cached), short(u.Output), short(u.Tokens))
	if u.Partial {
		s += " partial"
	}
	return strings.TrimSpace(s)
}

// readParts reads a body in parts whose sizes come from next.
func readParts(contentType, body string, next func() int) string {
	r := NewReader(contentType, "")
	for len(body) > 0 {
		n := min(len(body), next())
		if m, err := r.Write([]byte(body[:n])); m != n || err != nil {
			panic(fmt.Sprint("Write: ", m, err))
		}
		body = body[n:]
	}
	return describe(r.Usage())
}

func read(contentType, body string) string {
	return readParts(contentType, body, func() int { return len(body) })
}

// wantUsage reads a body as a whole, byte by byte, in two parts with every possible cut, and in random parts.
func wantUsage(t *testing.T, contentType, body, want string) {
	t.Helper()
	if got := read(contentType, body); got != want {
		t.Errorf("%.200s\ngot  %s\nwant %s", body, got, want)
		return
	}
	if got := readParts(contentType, body, func() int { return 1 }); got != want {
		t.Errorf("%.200s\nbyte by byte: %s\nwant %s", body, got, want)
	}
	for cut := range min(len(body), 5000) {
		first := true
		got := readParts(contentType, body, func() int {
			if first {
				first = false
				return cut
			}
			return len(body)
		})
		if got != want {
			t.Fatalf("%.200s\ncut at %d: %s\nwant %s", body, cut, got, want)
		}
	}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		if got := readParts(contentType, body, func() int { return random.IntN(40) }); got != want {
			t.Errorf("%.200s\nseed %d: %s\nwant %s", body, seed, got, want)
		}
	}
}

var recorded = map[string]string{
	"openai-chat.json":       "gpt-4.1-2025-04-14 86+1920+300=2306",
	"openai-chat.sse":        "gpt-4o-mini-2024-07-18 19+0+10=29",
	"openai-responses.json":  "o4-mini-2025-04-16 43+32+1186=1261",
	"openai-responses.sse":   "gpt-4.1-2025-04-14 32+5+11=48",
	"openai-embeddings.json": "text-embedding-3-small 8+?+0=8",
	"xai-chat.json":          "grok-3-mini 26+6+103=135",
	"anthropic.json":         "claude-sonnet-4-20250514 209+1886+393=2488",
	"anthropic.sse":          "claude-opus-4-20250514 35+4000+15=4050",
	"gemini.json":            "gemini-2.5-pro 425+2027+2010=4462",
	"gemini.sse":             "gemini-2.5-flash 11+?+464=475",
	"gemini-array.json":      "gemini-2.0-flash 6+?+12=18",
	"gemini-blocked.json":    "gemini-2.5-flash 14+?+0=14",
	"ollama.ndjson":          "llama3.2 26+?+282=308",
}

func load(t testing.TB, name string) (contentType, body string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{".json": typeJSON, ".sse": typeEvents, ".ndjson": typeLines}
	return types[filepath.Ext(name)], string(b)
}

func TestRecordedAnswers(t *testing.T) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) != len(recorded) {
		t.Errorf("%d files, %d of them expected: %v", len(files), len(recorded), err)
	}
	for name, want := range recorded {
		t.Run(name, func(t *testing.T) {
			contentType, body := load(t, name)
			wantUsage(t, contentType, body, want)
			wantUsage(t, contentType, strings.ReplaceAll(body, "\n", "\r\n"), want)
			if contentType == typeEvents {
				wantUsage(t, contentType, strings.ReplaceAll(body, "\n", "\r"), want)
				wantUsage(t, contentType, strings.ReplaceAll(body, "data: ", "data:"), want)
				wantUsage(t, contentType, strings.ReplaceAll(body, "\n\n", "\n"), want)
				wantUsage(t, contentType, ": hello\nretry: 5\nid\n\n"+strings.TrimSpace(body), want)
			}
		})
	}
}

// Wherever a response breaks off, the reader reports no usage, a partial usage, or the right one.
func TestAnswersThatBreakOff(t *testing.T) {
	for name, want := range recorded {
		contentType, body := load(t, name)
		for cut := range len(body) {
			got := read(contentType, body[:cut])
			if got != want && !strings.HasPrefix(got, "nothing") && !strings.HasSuffix(got, " partial") {
				t.Errorf("%s cut at %d: %s", name, cut, got)
			}
		}
	}
	_, body := load(t, "anthropic.sse")
	start, _, _ := strings.Cut(body, "event: content_block_start")
	wantUsage(t, typeEvents, start, "claude-opus-4-20250514 35+4000+1=4036 partial")
	_, body = load(t, "gemini-array.json")
	half, _, _ := strings.Cut(body, "\n,")
	wantUsage(t, typeJSON, half, "gemini-2.0-flash 6+?+3=9 partial")
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct{ name, contentType, body, want string }{
		{"nothing at all", typeJSON, ``, "nothing"},
		{"an error", typeJSON, `{"error":{"message":"usage: {}","type":"invalid_request_error"}}`, "nothing"},
		{"null", typeJSON, `{"model":"m","usage":null}`, "nothing m"},
		{"an empty object", typeJSON, `{"model":"m","usage":{}}`, "nothing m"},
		{"a string", typeJSON, `{"usage":"{\"prompt_tokens\":1}"}`, "nothing"},
		{"an array", typeJSON, `{"usage":[{"prompt_tokens":1,"completion_tokens":1}]}`, "nothing"},
		{"too deep", typeJSON, `{"data":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}`, "nothing"},
		{"in a choice", typeJSON, `{"choices":[{"usage":{"prompt_tokens":1,"completion_tokens":1}}]}`, "nothing"},
		{"outside of it", typeJSON, `{"prompt_tokens":1,"completion_tokens":1}`, "nothing"},
		{"a name in capitals", typeJSON, `{"Usage":{"prompt_tokens":1,"completion_tokens":1}}`, "nothing"},

		{"input alone", typeJSON, `{"usage":{"prompt_tokens":5}}`, "5+?+?=?"},
		{"a total alone", typeJSON, `{"usage":{"total_tokens":5}}`, "?+?+?=5"},
		{"zeros", typeJSON, `{"usage":{"prompt_tokens":0,"completion_tokens":0}}`, "0+?+0=0"},
		{"escaped names", typeJSON, `{"us\u0061g\u0065":{"prompt\u005ftokens":5,"completion_tokens":6}}`, "5+?+6=11"},
		{"escaped model", typeJSON, `{"model":"meta\/ll\u00e4ma \ud83d\ude00","usage":{"prompt_tokens":1}}`, "meta/lläma 😀 1+?+?=?"},
		{"long model", typeJSON, `{"model":"` + strings.Repeat("m", maxKept+1) + `","usage":{"prompt_tokens":1}}`, "1+?+?=?"},
		{"longest model", typeJSON, `{"model":"` + strings.Repeat("m", maxKept) + `","usage":{"prompt_tokens":1}}`,
			strings.Repeat("m", maxKept) + " 1+?+?=?"},
		{"model of no kind", typeJSON, `{"model":{"model":"m"},"usage":{"prompt_tokens":1}}`, "1+?+?=?"},
		{"usage first", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6},"model":"m"}`, "m 5+?+6=11"},

		{"repeated", typeJSON, `{"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":90},"usage":{"prompt_tokens":5,"completion_tokens":6}}`, "5+?+6=11"},
		{"repeated, then null", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6},"usage":null}`, "5+?+6=11"},
		{"a field repeated", typeJSON, `{"usage":{"prompt_tokens":1,"prompt_tokens":5,"completion_tokens":6}}`, "5+?+6=11"},
		{"a field repeated as nonsense", typeJSON, `{"usage":{"prompt_tokens":5,"prompt_tokens":"x","completion_tokens":6}}`, "?+?+6=?"},

		{"a field repeated as an object", typeJSON, `{"usage":{"prompt_tokens":5,"prompt_tokens":{},"completion_tokens":6}}`, "?+?+6=?"},
		{"negative", typeJSON, `{"usage":{"prompt_tokens":-5,"completion_tokens":6}}`, "?+?+6=?"},
		{"minus zero", typeJSON, `{"usage":{"prompt_tokens":-0,"completion_tokens":6}}`, "?+?+6=?"},
		{"fractional", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6.5}}`, "5+?+?=?"},
		{"exponent", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":1e300}}`, "5+?+?=?"},
		{"huge", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":9223372036854775807}}`, "5+?+?=?"},
		{"2⁶⁴+1", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":18446744073709551617}}`, "5+?+?=?"},
		{"more than huge", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":` + strings.Repeat("9", 1000) + `}}`, "5+?+?=?"},
		{"the largest", typeJSON, `{"usage":{"prompt_tokens":9007199254740992,"completion_tokens":9007199254740992}}`,
			"9007199254740992+?+9007199254740992=18014398509481984"},
		{"one more", typeJSON, `{"usage":{"prompt_tokens":9007199254740993,"completion_tokens":1}}`, "?+?+1=?"},
		{"strings", typeJSON, `{"usage":{"prompt_tokens":"5","completion_tokens":"6"}}`, "nothing"},
		{"objects", typeJSON, `{"usage":{"prompt_tokens":{"prompt_tokens":5},"completion_tokens":[6]}}`, "nothing"},
		{"booleans", typeJSON, `{"usage":{"prompt_tokens":true,"completion_tokens":false}}`, "nothing"},
		{"nulls", typeJSON, `{"usage":{"input_tokens":5,"output_tokens":6,"cache_read_input_tokens":null,"cache_creation_input_tokens":null}}`, "5+?+6=11"},

		{"cached more than there is", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":9}}}`, "5+?+6=11"},
		{"cached is nonsense", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":-1}}}`, "5+?+6=11"},
		{"Anthropic's cache is nonsense", typeJSON, `{"usage":{"input_tokens":5,"output_tokens":6,"cache_read_input_tokens":-1}}`, "5+?+6=?"},
		{"Anthropic's fields beside OpenAI's", typeJSON,
			`{"usage":{"prompt_tokens":100,"completion_tokens":6,"total_tokens":106,"prompt_tokens_details":{"cached_tokens":80},"cache_read_input_tokens":80,"cache_creation_input_tokens":7}}`,
			"20+80+6=106"},
		{"a total that is too low", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":5}}`, "5+?+6=11"},
		{"a total that is nonsense", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":"x"}}`, "5+?+6=11"},
		{"output from the total", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":"x","total_tokens":11}}`, "5+?+6=11"},
		{"candidates with thoughts", typeJSON, `{"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":10,"thoughtsTokenCount":4,"totalTokenCount":15}}`, "5+?+10=15"},
		{"thoughts without candidates", typeJSON, `{"usageMetadata":{"promptTokenCount":5,"thoughtsTokenCount":4}}`, "5+?+4=9"},

		{"thoughts and a total that is too low", typeJSON, `{"usageMetadata":{"promptTokenCount":5,"thoughtsTokenCount":10,"totalTokenCount":8}}`, "5+?+10=15"},

		{"malformed before", typeJSON, `{"a":tru,"usage":{"prompt_tokens":5,"completion_tokens":6}}`, "nothing"},
		{"malformed behind", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6},}`, "nothing"},
		{"truncated behind", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6}`, "nothing"},
		{"truncated in a number", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6`, "nothing"},
		{"mismatched brackets", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6]}`, "nothing"},
		{"a string that isn't closed", typeJSON, `{"model":"m,"usage":{"prompt_tokens":5}}`, "nothing"},
		{"a line's end in a string", typeJSON, "{\"model\":\"m\n,\"usage\":{\"prompt_tokens\":5}}", "nothing"},
		{"nested too deeply", typeJSON, `{"a":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `,"usage":{"prompt_tokens":5}}`, "nothing"},
		{"nested deeply", typeJSON, `{"a":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `,"usage":{"prompt_tokens":5}}`, "5+?+?=?"},
		{"an array that breaks", typeJSON, `[{"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":6}},{"usageMetadata":{"promptTokenCount":7]`, "5+?+6=11 partial"},
		{"a stream called JSON", typeJSON, "{\"done\":false}\n{\"done\":true,\"prompt_eval_count\":5,\"eval_count\":6}\n", "5+?+6=11"},
		{"rubbish behind", typeJSON, `{"usage":{"prompt_tokens":5,"completion_tokens":6}} and so on`, "5+?+6=11"},

		{"a stream without usage", typeEvents, "data: {\"model\":\"m\",\"choices\":[]}\n\ndata: [DONE]\n\n", "nothing m"},
		{"usage in every event", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"no end", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n", "5+?+1=6 partial"},
		{"an end without a line's", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: [DONE]", "5+?+1=6"},
		{"a longer mark", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: [DONE]]\n\n", "5+?+1=6 partial"},
		{"an event of several lines", typeEvents, "data: {\"usage\":\ndata:{\"prompt_tokens\":5,\ndata: \"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"several lines, with CR and LF", typeEvents, "data: {\"usage\":\r\ndata:{\"prompt_tokens\":5,\r\ndata: \"completion_tokens\":6}}\r\n\r\n", "5+?+6=11 partial"},
		{"a number in two lines", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5\ndata:0,\"completion_tokens\":6}}\n\n", "nothing"},
		{"finished, but not done", typeEvents, "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\n", "5+?+6=11"},
		{"an empty reason to finish", typeEvents, "data: {\"choices\":[{\"finish_reason\":\"\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n", "5+?+1=6 partial"},
		{"an unspecified reason to finish", typeEvents, "data: {\"candidates\":[{\"finishReason\":\"FINISH_REASON_UNSPECIFIED\"}],\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":1}}\n\n", "5+?+1=6 partial"},
		{"an event that breaks late", typeEvents, "data: {\"model\":\"x\",\"prompt_eval_count\":7,\n\ndata: []\n\ndata: {\"eval_count\":6}\n\n", "?+?+6=? partial"},
		{"an event that breaks", typeEvents, "data: {\"usage\":{\"prompt_tokens\":1\n\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"an event that isn't JSON", typeEvents, "data: hello\n\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"other fields", typeEvents, "dat: {\"usage\":{\"prompt_tokens\":5}}\n\ndatax: {\"usage\":{\"prompt_tokens\":5}}\n\n data: {\"usage\":{\"prompt_tokens\":5}}\n\n: {}\n\n", "nothing"},
		{"JSON in place of events", typeEvents, `{"usage":{"prompt_tokens":5,"completion_tokens":6}}`, "nothing"},
		{"a wrapped answer", typeEvents, "data: {\"response\":{\"modelVersion\":\"g\",\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":6}}}\n\n", "g 5+?+6=11 partial"},
		{"a failed response", typeEvents, "data: {\"type\":\"response.failed\",\"response\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":6}}}\n\n", "5+?+6=11"},
		{"less later", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: {\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"less cached later", typeEvents, "data: {\"usageMetadata\":{\"promptTokenCount\":9,\"cachedContentTokenCount\":4,\"candidatesTokenCount\":6}}\n\ndata: {\"usageMetadata\":{\"promptTokenCount\":3,\"candidatesTokenCount\":2}}\n\ndata: [DONE]\n\n", "5+4+6=15"},
		{"nonsense later", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: {\"usage\":{\"completion_tokens\":-1}}\n\ndata: [DONE]\n\n", "5+?+?=?"},
		{"nonsense before", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6e3}}\n\ndata: {\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n", "5+?+?=?"},
		{"less than it streamed", typeEvents, strings.Repeat("data: {}\n\n", 70) + "data: {\"usage\":{\"prompt_tokens\":500,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "500+?+6=506 partial"},
		{"a total that is less than it streamed", typeEvents, strings.Repeat("data: {}\n\n", 70) + "data: {\"usage\":{\"total_tokens\":6}}\n\ndata: [DONE]\n\n", "?+?+?=6 partial"},
		{"nothing streamed", typeEvents, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":0}}\n\ndata: [DONE]\n\n", "5+?+0=5"},
		{"pings", typeEvents, strings.Repeat("data: {}\n\n", 60) + "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n", "5+?+6=11"},
		{"later input", typeEvents, "data: {\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\ndata: {\"usage\":{\"input_tokens\":50,\"cache_read_input_tokens\":7,\"output_tokens\":6}}\n\ndata: {\"type\":\"message_stop\"}\n\n", "50+7+6=63"},

		{"a broken line", typeLines, "{\"prompt_eval_count\":\n{\"done\":true,\"prompt_eval_count\":5,\"eval_count\":6}\n", "5+?+6=11"},
		{"a last line without an end", typeLines, "\n{}\n{\"done\":true,\"prompt_eval_count\":5,\"eval_count\":6}", "5+?+6=11"},
		{"lines that aren't done", typeLines, "{\"done\":false,\"prompt_eval_count\":5,\"eval_count\":6}\n", "5+?+6=11 partial"},
		{"application/stream+json", "Application/Stream+JSON", "{\n{\"usage\":{\"prompt_tokens\":5}}\n", "5+?+?=? partial"},
		{"application/problem+json", "application/problem+json", `{"usage":{"prompt_tokens":5}}`, "5+?+?=?"},
		{"text", "text/plain", `{"usage":{"prompt_tokens":5}}`, "5+?+?=?"},
		{"no type", "", "\n [{\"usage\":{\"prompt_tokens\":5}}]", "5+?+?=?"},
		{"events of no type", "", "data: {\"usage\":{\"prompt_tokens\":5}}\n\n", "5+?+?=? partial"},
		{"sound", "audio/mpeg", "ID3\x04{\"usage\":{\"prompt_tokens\":5}}", "nothing"},
		{"Bedrock", typeJSON, `{"usage":{"inputTokens":5,"outputTokens":6,"totalTokens":11,"cacheReadInputTokens":7}}`, "5+7+6=18"},
	} {
		t.Run(c.name, func(t *testing.T) { wantUsage(t, c.contentType, c.body, c.want) })
	}
}

// The zero Reader reads nothing.
func TestZeroReader(t *testing.T) {
	var r Reader
	_, _ = r.Write([]byte(`{"usage":{"prompt_tokens":5}}`))
	if u, ok := r.Usage(); ok {
		t.Error(u)
	}
}
