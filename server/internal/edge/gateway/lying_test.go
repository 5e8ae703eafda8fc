package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// If a response reports wrong usage or breaks off, the gateway books the most that it reported, what was reserved, or
// an estimate from its length. The call reserves 2 tokens of input and 100 of output.
func TestResponsesThatReportWrongUsage(t *testing.T) {
	const (
		openAI    = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n"
		anthropic = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word\"}}\n\n"
		gemini    = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"word\"}]}}]}\n\n"
		ollama    = "{\"model\":\"m\",\"message\":{\"content\":\"word\"},\"done\":false}\n"
		done      = "data: [DONE]\n\n"
		begin     = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n"
		stop      = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		events    = "text/event-stream"
		lines     = "application/x-ndjson"
		document  = "application/json"
	)
	used := func(in, out string) string {
		return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%s,\"completion_tokens\":%s}}\n\n", in, out)
	}
	delta := func(out string) string {
		return "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":" + out + "}}\n\n"
	}
	parts := func(out, reason string) string {
		return fmt.Sprintf("data: {\"candidates\":[{%s}],\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":%s}}\n\n", reason, out)
	}
	counts := func(in, out string) string {
		return fmt.Sprintf("{\"model\":\"m\",\"done\":true,\"prompt_eval_count\":%s,\"eval_count\":%s}\n", in, out)
	}
	text := `"usage\": {\"prompt_tokens\": 0, \"completion_tokens\": 0}, \n\ndata: {\"usage\":{\"completion_tokens\":0}}"`
	for name, c := range map[string]struct {
		path, contentType, answer string
		breaks                    bool
		took                      int
	}{
		"OpenAI, usage in the middle":       {"/v1/chat/completions", events, used("10", "5") + strings.Repeat(openAI, 3000) + done, false, 3011},
		"OpenAI, nothing at the end":        {"/v1/chat/completions", events, strings.Repeat(openAI, 3000) + used("10", "0") + done, false, 3011},
		"OpenAI, next to nothing":           {"/v1/chat/completions", events, strings.Repeat(openAI, 3000) + used("10", "1") + done, false, 3011},
		"OpenAI, less each time":            {"/v1/chat/completions", events, used("10", "500") + used("9", "5") + used("0", "0") + done, false, 510},
		"OpenAI, negative":                  {"/v1/chat/completions", events, used("10", "500") + used("10", "-500") + done, false, 110},
		"OpenAI, negative, whole":           {"/v1/chat/completions", document, `{"usage":{"prompt_tokens":10,"completion_tokens":-500,"total_tokens":-490}}`, false, 110},
		"OpenAI, a fraction":                {"/v1/chat/completions", events, used("10", "0.5") + done, false, 110},
		"OpenAI, huge":                      {"/v1/chat/completions", events, used("10", "1e300") + done, false, 110},
		"OpenAI, more than an int64":        {"/v1/chat/completions", document, `{"usage":{"prompt_tokens":10,"completion_tokens":18446744073709551617}}`, false, 110},
		"OpenAI, text":                      {"/v1/chat/completions", events, "data: {\"choices\":[{\"delta\":{\"content\":" + text + "}}]}\n\n" + used("10", "500") + done, false, 510},
		"OpenAI, text, whole":               {"/v1/chat/completions", document, `{"usage":{"prompt_tokens":10,"completion_tokens":500},"choices":[{"message":{"content":` + text + `}}]}`, false, 510},
		"OpenAI, usage in a choice":         {"/v1/chat/completions", document, `{"usage":{"prompt_tokens":10,"completion_tokens":500},"choices":[{"usage":{"prompt_tokens":0,"completion_tokens":0}}]}`, false, 510},
		"OpenAI, breaks off":                {"/v1/chat/completions", events, strings.Repeat(openAI, 3000), true, 3002},
		"OpenAI, breaks off without a word": {"/v1/chat/completions", events, "", true, 102},
		"Anthropic, nothing at the end":     {"/v1/messages", events, begin + strings.Repeat(anthropic, 3000) + delta("0") + stop, false, 3013},
		"Anthropic, less each time":         {"/v1/messages", events, begin + delta("500") + delta("5") + delta("0") + stop, false, 510},
		"Anthropic, no last event":          {"/v1/messages", events, begin + strings.Repeat(anthropic, 50) + delta("500"), true, 510},
		"Anthropic, neither":                {"/v1/messages", events, begin + strings.Repeat(anthropic, 3000), true, 3011},
		"Anthropic, a fraction":             {"/v1/messages", events, begin + delta("500.5") + stop, false, 110},
		"Anthropic, huge":                   {"/v1/messages", events, begin + delta("99999999999999999999") + stop, false, 110},
		"Anthropic, text":                   {"/v1/messages", events, begin + strings.Replace(anthropic, `"word"`, text, 1) + delta("500") + stop, false, 510},
		"Anthropic, usage elsewhere":        {"/v1/messages", events, begin + delta("500") + "data: {\"type\":\"x\",\"content_block\":{\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}}\n\n" + stop, false, 510},
		"Gemini, usage in the middle":       {"/v1beta/models/m:streamGenerateContent", events, parts("5", "") + strings.Repeat(gemini, 3000) + "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n", false, 3012},
		"Gemini, nothing at the end":        {"/v1beta/models/m:streamGenerateContent", events, strings.Repeat(gemini, 3000) + parts("0", `"finishReason":"STOP"`), false, 3011},
		"Gemini, less each time":            {"/v1beta/models/m:streamGenerateContent", events, parts("500", "") + parts("5", "") + parts("0", `"finishReason":"STOP"`), false, 510},
		"Gemini, negative":                  {"/v1beta/models/m:streamGenerateContent", events, parts("-500", `"finishReason":"STOP"`), false, 110},
		"Gemini, breaks off":                {"/v1beta/models/m:streamGenerateContent", events, parts("5", "") + strings.Repeat(gemini, 3000), true, 3011},
		"Gemini, an array that breaks off":  {"/v1beta/models/m:streamGenerateContent", document, `[{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":500}},{"usageMetadata":{"promptTokenCount":1`, true, 510},
		"Gemini, text":                      {"/v1beta/models/m:streamGenerateContent", events, strings.Replace(gemini, `"word"`, text, 1) + parts("500", `"finishReason":"STOP"`), false, 510},
		"Ollama, nothing at the end":        {"/api/chat", lines, strings.Repeat(ollama, 3000) + counts("10", "0"), false, 3011},
		"Ollama, less each time":            {"/api/chat", lines, counts("10", "500") + counts("1", "5"), false, 510},
		"Ollama, negative":                  {"/api/chat", lines, counts("10", "-1"), false, 110},
		"Ollama, a fraction":                {"/api/chat", lines, counts("10", "5e2"), false, 110},
		"Ollama, breaks off":                {"/api/chat", lines, strings.Repeat(ollama, 3000), true, 3002},
		"Ollama, text":                      {"/api/chat", lines, strings.Replace(ollama, `"word"`, text, 1) + counts("10", "500"), false, 510},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("tokens", 100_000))
			handled := make(chan struct{}, 1)
			up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.contentType)
				_, _ = io.WriteString(w, c.answer)
				_ = http.NewResponseController(w).Flush()
				if c.breaks {
					panic(http.ErrAbortHandler)
				}
			})
			d := start(t, setup{upstream: up.URL, limiter: l, handled: handled})
			limit := `"max_tokens": 100` // each API has its own name for it
			switch {
			case strings.HasSuffix(c.path, "Content"):
				limit = `"generationConfig": {"maxOutputTokens": 100}`
			case c.path == "/api/chat":
				limit = `"options": {"num_predict": 100}`
			}
			req := d.request(t, "POST", c.path, strings.NewReader(strings.Replace(chat, `"max_tokens": 100`, limit, 1)))
			if res, err := d.client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, bufio.NewReader(res.Body))
				res.Body.Close()
			}
			await(t, handled, "the end at the gateway")
			if got := left(t, l)["tokens"]; got != fmt.Sprint(100_000-c.took) {
				t.Errorf("%s tokens left, want %d", got, 100_000-c.took)
			}
		})
	}
}
