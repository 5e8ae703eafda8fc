package usage

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
)

// describeAsked is a request in one line: model, estimated input, limit of a choice × choices.
func describeAsked(a Asked) string {
	s := fmt.Sprintf("%s %d %s×%d", a.Model, a.Input, a.MaxOutput, a.Choices)
	if a.Stream {
		s += " stream"
	}
	if a.NoUsage {
		s += " no usage"
	}
	return strings.TrimSpace(s)
}

func TestReadRequest(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"chat", `{"model":"gpt-4o","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello, world"}],"max_completion_tokens":500,"n":3}`, "gpt-4o 6 500×3"},
		{"streamed chat", `{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"Hi"}]}`, "gpt-4o 1 unknown×1 stream no usage"},
		{"streamed chat with usage", `{"stream":true,"stream_options":{"include_usage":true},"messages":[]}`, "0 unknown×1 stream"},
		{"chat with a picture", `{"messages":[{"role":"user","content":[{"type":"text","text":"What's this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 9999) + `"}}]}]}`, "3 unknown×1"},
		{"chat with tools", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"12345"}],
			"tools":[{"type":"function","function":{"name":"f","description":"12345678","parameters":{"type":"object","properties":{"a":{"type":"1234"}}}}}]}`, "8 unknown×1"},
		{"completions", `{"model":"davinci","prompt":["1234","5678"],"max_tokens":16,"n":2,"best_of":4}`, "davinci 2 16×8"},
		{"prompt of tokens", `{"prompt":[1,2,3]}`, "3 unknown×1"},
		{"embeddings of tokens", `{"model":"e","input":[[1,2,3],[4]]}`, "e 4 unknown×1"},
		{"embeddings", `{"model":"e","input":"12345"}`, "e 2 unknown×1"},
		{"responses", `{"model":"o3","instructions":"1234","input":[{"role":"user","content":[{"type":"input_text","text":"5678"},{"type":"input_image","image_url":"data:AAAAAAAA"}]},{"type":"function_call_output","call_id":"c","output":"9012"}],"max_output_tokens":9,"stream":true}`, "o3 3 9×1 stream"},
		{"Anthropic", `{"model":"claude","max_tokens":1024,"system":[{"type":"text","text":"1234","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAAAAAAAAAAAAAAA"}},{"type":"text","text":"5678"}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"city":"9012","more":["3456"]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"7890"}]}]}]}`, "claude 5 1024×1"},
		{"Gemini", `{"systemInstruction":{"parts":[{"text":"1234"}]},"contents":[{"role":"user","parts":[{"text":"5678"},{"inlineData":{"mimeType":"image/png","data":"AAAAAAAA"}}]}],"generationConfig":{"maxOutputTokens":800,"candidateCount":2,"temperature":0.5}}`, "2 800×2"},
		{"Gemini in snakes", `{"generation_config":{"max_output_tokens":800,"candidate_count":2}}`, "0 800×2"},
		{"Ollama", `{"model":"llama3","prompt":"1234","images":["AAAAAAAA"],"options":{"num_predict":42}}`, "llama3 1 42×1"},
		{"Ollama without a limit", `{"model":"llama3","options":{"num_predict":-1}}`, "llama3 0 unknown×1"},

		{"escapes", `{"prompt":"\u00e9\u4e2d\ud83d\ude00\n\"\/"}`, "3 unknown×1"}, // 2+3+4+3 bytes
		{"raw UTF-8", `{"prompt":"é中😀..."}`, "3 unknown×1"},
		{"a limit inside a message", `{"messages":[{"role":"user","content":"{\"max_tokens\":5}","max_tokens":5,"n":7,"stream":true,"model":"m"}]}`, "4 unknown×1"},
		{"the highest limit", `{"max_tokens":5,"max_completion_tokens":100,"max_output_tokens":7}`, "0 100×1"},
		{"a limit twice", `{"max_tokens":100,"max_tokens":5}`, "0 100×1"},
		{"a limit of 0", `{"max_tokens":0}`, "0 unknown×1"},
		{"a limit and nonsense", `{"max_tokens":1,"max_tokens":null}`, "0 unknown×1"},
		{"a limit and an object", `{"max_tokens":1,"max_tokens":{}}`, "0 unknown×1"},
		{"limits in other words", `{"max_tokens":1,"max_tokens":1e5,"max_completion_tokens":" 7 ","n":"3"}`, "0 100000×3"},
		{"half a choice", `{"max_tokens":2,"n":2.5}`, "0 2×3"},
		{"prompts of tokens", `{"prompt":[[1,2],[3]],"max_tokens":5}`, "3 5×2"},
		{"limits of no use", `{"max_tokens":-1,"max_completion_tokens":"5","max_output_tokens":1e300,"n":-2}`, "0 unknown×1"},
		{"more limits of no use", `{"max_tokens":1.5,"max_completion_tokens":null,"max_output_tokens":[5],"n":{"n":3}}`, "0 unknown×1"},
		{"no choices", `{"n":0}`, "0 unknown×1"},
		{"stream as a string", `{"stream":"true","messages":[]}`, "0 unknown×1"},
		{"stream twice", `{"stream":true,"messages":[],"stream":false}`, "0 unknown×1"},
		{"stream and an object", `{"stream":true,"messages":[],"stream":{}}`, "0 unknown×1"},
		{"no messages after all", `{"stream":true,"messages":[],"messages":"x"}`, "0 unknown×1 stream"},
		{"numbers in place of text", `{"messages":[{"role":"user","content":[1,2]}]}`, "0 unknown×1"},
		{"text behind a long name", `{"` + strings.Repeat("x", maxKept+1) + `":{"text":"1234"}}`, "1 unknown×1"},
		{"model of no kind", `{"model":7}`, "0 unknown×1"},

		{"nothing", ``, "0 unknown×1"},
		{"not JSON", `model=m&stream=true`, "0 unknown×1"},
		{"an array", `[{"model":"m","text":"12345678"}]`, "0 unknown×1"},
		{"truncated", `{"model":"m","prompt":"hello"`, "0 unknown×1"},
		{"rubbish behind", `{"model":"m","prompt":"hello"} {}`, "0 unknown×1"},
		{"space around", " \n{\"model\":\"m\"}\r\n\t ", "m 0 unknown×1"},
	} {
		if got := describeAsked(ReadRequest([]byte(c.body))); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// What stands before the cut, or before what isn't JSON, counts.
func TestReadStart(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"a whole one", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"12345678"}]}`, "m 2 5×1"},
		{"cut behind a value", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"12345678"}`, "m 2 5×1"},
		{"cut in a text", `{"model":"m","messages":[{"role":"user","content":"12345678`, "m 2 unknown×1"},
		{"cut in an escape", `{"model":"m","prompt":"1234\u00`, "m 1 unknown×1"},
		{"cut in the model", `{"max_tokens":5,"model":"mod`, "0 5×1"},
		{"cut in a name", `{"model":"m","messages`, "m 0 unknown×1"},
		{"cut in a picture", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"1234"},{"type":"image_url","image_url":{"url":"data:AAAAAAAAAAAAAAAAAA`, "m 1 unknown×1"},
		{"what Python takes for JSON", `{"model":"m","max_tokens":5,"temperature":NaN,"prompt":"1234"}`, "m 0 5×1"},
		{"more behind it", `{"model":"m","max_tokens":5} {"model":"other"}`, "m 0 5×1"},
		{"nothing", ``, "0 unknown×1"},
		{"no JSON", `hello`, "0 unknown×1"},
		{"an array", `[{"model":"m"}]`, "0 unknown×1"},
	} {
		if got := describeAsked(ReadStart([]byte(c.body))); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestOutput(t *testing.T) {
	for _, c := range []struct {
		asked Asked
		want  string
	}{
		{Asked{}, "unknown"},
		{Asked{Choices: 5}, "unknown"},
		{Asked{MaxOutput: Amount{100, true}}, "100"},
		{Asked{MaxOutput: Amount{100, true}, Choices: 3}, "300"},
		{Asked{MaxOutput: Amount{0, true}, Choices: maxCount}, "0"},
		{Asked{MaxOutput: Amount{maxCount, true}, Choices: 1}, "9007199254740992"},
		{Asked{MaxOutput: Amount{maxCount, true}, Choices: maxCount}, "9007199254740992"},
		{Asked{MaxOutput: Amount{2, true}, Choices: maxCount}, "9007199254740992"},
	} {
		if got := c.asked.Output().String(); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.asked, got, c.want)
		}
	}
}

func TestModelFromPath(t *testing.T) {
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.5-pro:generateContent":                                                    "gemini-2.5-pro",
		"/v1beta/models/gemini-2.5-pro:streamGenerateContent":                                              "gemini-2.5-pro",
		"/proxy/v1beta/tunedModels/mine-123:generateContent":                                               "mine-123",
		"/v1/projects/p/locations/l/publishers/google/models/gemini-2.0-flash-001:streamGenerateContent":   "gemini-2.0-flash-001",
		"/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4@20250514:streamRawPredict": "claude-sonnet-4@20250514",
		"/v1beta/models/a:b:countTokens":                                                                   "a:b",
		"/v1beta/models":                                                                                   "",
		"/v1beta/models/":                                                                                  "",
		"/v1beta/models/gemini-2.5-pro":                                                                    "",
		"/v1beta/models/gemini-2.5-pro:":                                                                   "",
		"/v1beta/models/:generateContent":                                                                  "",
		"/v1beta/models/gemini-2.5-pro:generateContent/more":                                               "",
		"/v1beta/mymodels/gemini:generateContent":                                                          "",
		"/v1beta/models/" + strings.Repeat("m", maxKept+1) + ":x":                                          "",
		"/v1/chat/completions":                                                                             "",
		"models/x:y":                                                                                       "",
		":":                                                                                                "",
		"":                                                                                                 "",
	} {
		if got := ModelFromPath(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestIsChatPath(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/chat/completions":                        true,
		"/v1/chat/completions/":                       true,
		"/openai/deployments/gpt-4o/chat/completions": true,
		"/v1/messages":                                false,
		"/v1/responses":                               false,
		"/api/chat":                                   false,
		"/v1/chat/completions/abc":                    false,
		"/v1/mychat/completions":                      false,
		"":                                            false,
	} {
		if got := IsChatPath(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}

func TestWithUsage(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{ // want is "" where nothing changes
		{"absent", `{"stream":true,"messages":[]}`, `{"stream_options":{"include_usage":true},"stream":true,"messages":[]}`},
		{"with spaces", " {\n \"messages\": [ ],\t\"stream\" : true }\n", " {\"stream_options\":{\"include_usage\":true},\n \"messages\": [ ],\t\"stream\" : true }\n"},
		{"null", `{"stream":true,"stream_options": null ,"messages":[]}`, `{"stream":true,"stream_options": {"include_usage":true} ,"messages":[]}`},
		{"empty", `{"stream":true,"messages":[],"stream_options":{ }}`, `{"stream":true,"messages":[],"stream_options":{"include_usage":true }}`},
		{"others", `{"stream":true,"stream_options":{"include_obfuscation":false},"messages":[]}`, `{"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"messages":[]}`},
		{"false", `{"stream":true,"stream_options":{"a":1,"include_usage": false},"messages":[]}`, `{"stream":true,"stream_options":{"a":1,"include_usage": true},"messages":[]}`},
		{"include null", `{"stream":true,"stream_options":{"include_usage":null},"messages":[]}`, `{"stream":true,"stream_options":{"include_usage":true},"messages":[]}`},
		{"true, then false", `{"stream":true,"stream_options":{"include_usage":true,"include_usage":false},"messages":[]}`, `{"stream":true,"stream_options":{"include_usage":true,"include_usage":true},"messages":[]}`},
		{"options twice", `{"stream":true,"stream_options":{"include_usage":true},"messages":[],"stream_options":{}}`, `{"stream":true,"stream_options":{"include_usage":true},"messages":[],"stream_options":{"include_usage":true}}`},
		{"odd bytes", "{\"x\":1e400,\"y\":\"\xff\\ud800\",\"y\":-0.0,\"stream\":true,\"messages\":[]}", "{\"stream_options\":{\"include_usage\":true},\"x\":1e400,\"y\":\"\xff\\ud800\",\"y\":-0.0,\"stream\":true,\"messages\":[]}"},
		{"elsewhere", `{"stream":true,"messages":[{"stream_options":{"include_usage":true},"content":"\"stream_options\":{}"}]}`, `{"stream_options":{"include_usage":true},"stream":true,"messages":[{"stream_options":{"include_usage":true},"content":"\"stream_options\":{}"}]}`},
		{"an escaped name", `{"stream":true,"stream\u005foptions":{"include\u005fusage":false},"messages":[]}`, `{"stream":true,"stream\u005foptions":{"include\u005fusage":true},"messages":[]}`},

		{"asked already", `{"stream":true,"stream_options":{"include_usage":true},"messages":[]}`, ""},
		{"not streamed", `{"messages":[]}`, ""},
		{"not streamed, it says", `{"stream":false,"messages":[]}`, ""},
		{"no chat", `{"stream":true,"input":"hello"}`, ""},
		{"messages of no kind", `{"stream":true,"messages":"hello"}`, ""},
		{"options of no kind", `{"stream":true,"stream_options":"yes","messages":[]}`, ""},
		{"a list of options", `{"stream":true,"stream_options":[],"messages":[]}`, ""},
		{"include of no kind", `{"stream":true,"stream_options":{"include_usage":{}},"messages":[]}`, ""},
		{"an array", `[{"stream":true,"messages":[]}]`, ""},
		{"truncated", `{"stream":true,"messages":[]`, ""},
		{"empty body", ``, ""},
	} {
		before := c.body
		got, changed := WithUsage([]byte(c.body))
		if want := c.want; want == "" && (changed || string(got) != before) || want != "" && (!changed || string(got) != want) {
			t.Errorf("%s: %t %s\nwant %s", c.name, changed, got, want)
		}
	}
}

// FuzzRequest checks that WithUsage adds what it says and nothing else.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"stream":true,"messages":[]}`, `{"stream":true,"stream_options": null ,"messages":[]}`, `{"stream":true,"messages":[],"stream_options":{ }}`,
		`{"stream":true,"stream_options":{"a":1,"include_usage": false},"messages":[]}`, `{"max_tokens":5,"n":2,"prompt":[1,"x"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		was := string(body)
		asked := ReadRequest(body)
		out, changed := WithUsage(body)
		if string(body) != was || changed != asked.NoUsage {
			t.Fatalf("%q became %q, changed %t, %+v", was, body, changed, asked)
		}
		if asked.Input < 0 || asked.Input > int64(len(body)) || asked.Choices < 1 || asked.Output().N < 0 {
			t.Errorf("%q: %+v", was, asked)
		}
		if !changed {
			if string(out) != was {
				t.Errorf("%q became %q", was, out)
			}
			return
		}
		now := ReadRequest(out)
		asked.NoUsage = false
		if now != asked {
			t.Errorf("%q became %q: %+v, then %+v", was, out, asked, now)
		}
		a, b := decode(t, body), decode(t, out)
		options, _ := b["stream_options"].(map[string]any)
		if options["include_usage"] != true {
			t.Errorf("%q became %q", was, out)
		}
		old, _ := a["stream_options"].(map[string]any)
		delete(old, "include_usage")
		delete(options, "include_usage")
		if len(old) == 0 && len(options) == 0 {
			delete(a, "stream_options")
			delete(b, "stream_options")
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%q became %q", was, out)
		}
	})
}

func decode(t *testing.T, body []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return v
}

// Of counts, sums and products none overflows.
func TestCountsFit(t *testing.T) {
	sum := new(big.Int).Mul(big.NewInt(maxCount), big.NewInt(int64(countsEnd-countsBegin)))
	if !sum.IsInt64() {
		t.Error(sum)
	}
}
