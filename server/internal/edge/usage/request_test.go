package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// describeAsked returns a request on one line: model, estimated input, limit per choice × choices.
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

// readRequest reads a complete request body.
func readRequest(body []byte) (Asked, error) {
	b := NewBody()
	if _, err := b.Read(body); err != nil {
		return Asked{Choices: 1}, err
	}
	if err := b.End(); err != nil {
		return Asked{Choices: 1}, err
	}
	return b.Asked(), nil
}

// describeRead returns a request on one line, or the reason for its refusal.
func describeRead(a Asked, err error) string {
	if err != nil {
		return "refused: " + err.Error()
	}
	return describeAsked(a)
}

func TestReadRequest(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"chat", `{"model":"gpt-4o","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello, world"}],"max_completion_tokens":500,"n":3}`, "gpt-4o 6 500×3"},
		{"streamed chat", `{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"Hi"}]}`, "gpt-4o 1 unknown×1 stream no usage"},
		{"streamed chat with usage", `{"stream":true,"stream_options":{"include_usage":true},"messages":[]}`, "0 unknown×1 stream"},
		{"chat with a picture", `{"messages":[{"role":"user","content":[{"type":"text","text":"What's this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 9999) + `"}}]}]}`, "3 unknown×1"},
		{"chat with tools", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"12345"}],
			"tools":[{"type":"function","function":{"name":"f","description":"12345678","parameters":{"type":"object","properties":{"a":{"type":"1234"}}}}}]}`, "13 unknown×1"},
		{"completions", `{"model":"davinci","prompt":["1234","5678"],"max_tokens":16,"n":2,"best_of":4}`, "davinci 2 16×8"},
		{"prompt of tokens", `{"prompt":[1,2,3]}`, "3 unknown×1"},
		{"embeddings of tokens", `{"model":"e","input":[[1,2,3],[4]]}`, "e 4 unknown×1"},
		{"embeddings", `{"model":"e","input":"12345"}`, "e 2 unknown×1"},
		{"responses", `{"model":"o3","instructions":"1234","input":[{"role":"user","content":[{"type":"input_text","text":"5678"},{"type":"input_image","image_url":"data:AAAAAAAA"}]},{"type":"function_call_output","call_id":"c","output":"9012"}],"max_output_tokens":9,"stream":true}`, "o3 3 9×1 stream"},
		{"Anthropic", `{"model":"claude","max_tokens":1024,"system":[{"type":"text","text":"1234","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAAAAAAAAAAAAAAA"}},{"type":"text","text":"5678"}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"city":"9012","more":["3456"]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"7890"}]}]}]}`, "claude 7 1024×1"},
		{"Gemini", `{"systemInstruction":{"parts":[{"text":"1234"}]},"contents":[{"role":"user","parts":[{"text":"5678"},{"inlineData":{"mimeType":"image/png","data":"AAAAAAAA"}}]}],"generationConfig":{"maxOutputTokens":800,"candidateCount":2,"temperature":0.5}}`, "2 800×2"},
		{"Gemini in snakes", `{"generation_config":{"max_output_tokens":800,"candidate_count":2}}`, "0 800×2"},
		{"Ollama", `{"model":"llama3","prompt":"1234","images":["AAAAAAAA"],"options":{"num_predict":42}}`, "llama3 1 42×1"},
		{"Ollama without a limit", `{"model":"llama3","options":{"num_predict":-1}}`, "llama3 0 unknown×1"},

		{"escapes", `{"prompt":"\u00e9\u4e2d\ud83d\ude00\n\"\/"}`, "3 unknown×1"}, // 2+3+4+3 bytes
		{"raw UTF-8", `{"prompt":"é中😀..."}`, "3 unknown×1"},
		{"a limit inside a message", `{"messages":[{"role":"user","content":"{\"max_tokens\":5}","max_tokens":5,"n":7,"stream":true,"model":"m"}]}`, "4 unknown×1"},
		{"the highest limit", `{"max_tokens":5,"max_completion_tokens":100,"max_output_tokens":7}`, "0 100×1"},
		{"a limit twice", `{"max_tokens":100,"max_tokens":5}`, "refused"},
		{"a limit of 0", `{"max_tokens":0}`, "0 unknown×1"},
		{"a limit and nonsense", `{"max_tokens":1,"max_tokens":null}`, "refused"},
		{"a limit and an object", `{"max_tokens":1,"max_tokens":{}}`, "refused"},
		{"limits in other words", `{"max_tokens":1,"max_tokens":1e5,"max_completion_tokens":" 7 ","n":"3"}`, "refused"},
		{"half a choice", `{"max_tokens":2,"n":2.5}`, "0 2×3"},
		{"prompts of tokens", `{"prompt":[[1,2],[3]],"max_tokens":5}`, "3 5×2"},
		{"limits of no use", `{"max_tokens":-1,"max_completion_tokens":"5","max_output_tokens":1e300,"n":-2}`, "refused"},
		{"more limits of no use", `{"max_tokens":1.5,"max_completion_tokens":null,"max_output_tokens":[5],"n":{"n":3}}`, "refused"},
		{"no choices", `{"n":0}`, "0 unknown×1"},
		{"stream as a string", `{"stream":"true","messages":[]}`, "0 unknown×1 stream no usage"},
		{"stream twice", `{"stream":true,"messages":[],"stream":false}`, "refused"},
		{"stream and an object", `{"stream":true,"messages":[],"stream":{}}`, "refused"},
		{"no messages after all", `{"stream":true,"messages":[],"messages":"x"}`, "refused"},
		{"numbers in place of text", `{"messages":[{"role":"user","content":[1,2]}]}`, "0 unknown×1"},
		{"text behind a long name", `{"` + strings.Repeat("x", maxKept+1) + `":{"text":"1234"}}`, "1 unknown×1"},
		{"model of no kind", `{"model":7}`, "0 unknown×1"},

		{"nothing", ``, "0 unknown×1"},
		{"not JSON", `model=m&stream=true`, "refused"},
		{"an array", `[{"model":"m","text":"12345678"}]`, "2 unknown×1"},
		{"truncated", `{"model":"m","prompt":"hello"`, "refused"},
		{"rubbish behind", `{"model":"m","prompt":"hello"} {}`, "refused"},
		{"space around", " \n{\"model\":\"m\"}\r\n\t ", "m 0 unknown×1"},
	} {
		if got := describeRead(readRequest([]byte(c.body))); got != c.want && !(c.want == "refused" && strings.HasPrefix(got, "refused: ")) {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// If a body is cut off, what comes before the cut counts.
func TestRequestsThatAreCutOff(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"a whole one", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"12345678"}]}`, "m 2 5×1"},
		{"cut behind a value", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"12345678"}`, "m 2 5×1"},
		{"cut in a text", `{"model":"m","messages":[{"role":"user","content":"12345678`, "m 2 unknown×1"},
		{"cut in an escape", `{"model":"m","prompt":"1234\u00`, "m 1 unknown×1"},
		{"cut in the model", `{"max_tokens":5,"model":"mod`, "0 5×1"},
		{"cut in a name", `{"model":"m","messages`, "m 0 unknown×1"},
		{"cut in a picture", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"1234"},{"type":"image_url","image_url":{"url":"data:AAAAAAAAAAAAAAAAAA`, "m 1 unknown×1"},
		{"nothing", ``, "0 unknown×1"},
	} {
		for _, size := range []int{1, 7, len(c.body) + 1} {
			b := NewBody()
			for part := range slices.Chunk([]byte(c.body), size) {
				if _, err := b.Read(part); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			if got := describeAsked(b.Asked()); got != c.want {
				t.Errorf("%s: got %s, want %s", c.name, got, c.want)
			}
			if got := b.InFile(); got != (c.name == "cut in a picture") {
				t.Errorf("%s: in a file: %t", c.name, got)
			}
		}
	}
}

// A body that servers could read in more than one way is refused, wherever in the body the ambiguity is.
func TestAmbiguousRequests(t *testing.T) {
	blanks := strings.Repeat(" ", 1<<20)
	for name, body := range map[string]string{
		"two models":                `{"model":"small","model":"large"}`,
		"two models, far apart":     `{"model":"small",` + blanks + `"model":"large"}`,
		"a model in capitals":       `{"model":"small","MODEL":"large"}`,
		"capitals alone":            `{"Model":"large"}`,
		"an escaped one":            `{"model":"small","mod\u0065l":"large"}`,
		"an escaped capital":        `{"\u004dodel":"large"}`,
		"letters that fold":         `{"max_to\u212aens":5}`,
		"a long s":                  `{"me\u017fsages":[]}`,
		"dashes":                    `{"max-tokens":5}`,
		"two limits":                `{"max_tokens":1,` + blanks + `"max_tokens":1000}`,
		"two equal limits":          `{"max_tokens":1,"max_tokens":1}`,
		"a limit in capitals":       `{"max_tokens":1,"Max_Tokens":1000}`,
		"Gemini's, twice":           `{"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":1000}}`,
		"Gemini's, in capitals":     `{"generationConfig":{"MaxOutputTokens":1000}}`,
		"two configs":               `{"generationConfig":{"maxOutputTokens":1},"generationConfig":{"maxOutputTokens":1000}}`,
		"Ollama's, in capitals":     `{"Options":{"num_predict":1000}}`,
		"choices twice":             `{"n":1,"n":50}`,
		"choices in capitals":       `{"N":50}`,
		"stream twice":              `{"stream":false,"stream":true}`,
		"usage twice":               `{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`,
		"usage in capitals":         `{"stream":true,"stream_options":{"Include_Usage":false}}`,
		"NaN":                       `{"model":"small","temperature":NaN,"model":"large"}`,
		"NaN first":                 `{"temperature":NaN,"model":"large"}`,
		"Infinity":                  `{"temperature":-Infinity,"model":"large"}`,
		"a byte order mark":         "\ufeff" + `{"model":"large"}`,
		"UTF-16":                    "{\x00\"\x00m\x00\"\x00:\x001\x00}\x00",
		"UTF-16 with a mark":        "\xff\xfe{\x00}\x00",
		"UTF-32":                    "\x00\x00\x00{\x00\x00\x00}",
		"a comment":                 `{"model":"small"/*,*/,"x":1}`,
		"a comma too many":          `{"model":"small",}`,
		"single quotes":             `{'model':'large'}`,
		"two documents":             `{"model":"small"}{"model":"large"}`,
		"half a document":           `{"model":"small"`,
		"a form":                    `model=large&max_tokens=5`,
		"a number with underscores": `{"max_tokens":"1_000"}`,
		"a number in hexadecimal":   `{"max_tokens":"0x3e8"}`,
		"a number in full width":    `{"max_tokens":"１０"}`,
		"a long number":             `{"max_tokens":1000.` + strings.Repeat("0", 300) + `}`,
		"a limit and none":          `{"max_tokens":-0,"max_output_tokens":1E+5}`,
		"a long model":              `{"model":"` + strings.Repeat("m", 300) + `"}`,
		"a job in the background":   `{"model":"small","background":true}`,
		"a job of a kind":           `{"model":"small","background":{}}`,
		"a list of jobs":            `{"model":"small","background":[true]}`,
		"a job, deferred":           `{"model":"small","deferred":1}`,
		"options of no kind":        `{"stream":true,"stream_options":"yes","messages":[]}`,
		"include of no kind":        `{"stream":true,"stream_options":{"include_usage":0},"messages":[]}`,
		"too deep":                  strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		var fault *Fault
		if a, err := readRequest([]byte(body)); !errors.As(err, &fault) {
			t.Errorf("%s: %v, %+v", name, err, a)
		}
		b := NewBody()
		var err error
		for part := range slices.Chunk([]byte(body), 1000) {
			if err == nil {
				_, err = b.Read(part)
			}
		}
		if err == nil {
			err = b.End()
		}
		if !errors.As(err, &fault) {
			t.Errorf("%s, in parts: %v", name, err)
		}
	}
	for name, body := range map[string]string{
		"the same name elsewhere": `{"model":"m","messages":[{"model":"x","Model":"y","max_tokens":7}],"tools":[{"model":"z"}]}`,
		"a transparent picture":   `{"model":"m","background":"transparent"}`,
		"several limits":          `{"max_tokens":5,"max_completion_tokens":7}`,
		"other capitals":          `{"model":"m","Query":"x","Temperature":1}`,
		"twice the same text":     `{"model":"m","x":1,"x":2}`,
		"null":                    `{"model":null,"max_tokens":null,"n":null,"stream":null,"stream_options":null}`,
		"blanks":                  blanks,
		"a number":                "5",
	} {
		if _, err := readRequest([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
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

func TestModelsFromPath(t *testing.T) {
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.5-pro:generateContent":                                                    "gemini-2.5-pro",
		"/v1beta/models/gemini-2.5-pro:streamGenerateContent":                                              "gemini-2.5-pro",
		"/v1beta//Models//gemini-2.5-pro:streamGenerateContent/":                                           "gemini-2.5-pro",
		"/proxy/v1beta/tunedModels/mine-123:generateContent":                                               "mine-123",
		"/v1/projects/p/locations/l/publishers/google/models/gemini-2.0-flash-001:streamGenerateContent":   "gemini-2.0-flash-001",
		"/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4@20250514:streamRawPredict": "claude-sonnet-4@20250514",
		"/v1/projects/p/locations/l/endpoints/123:predict":                                                 "123",
		"/v1/projects/p/locations/l/endpoints/openapi/chat/completions":                                    "",
		"/v1beta/models/a:b:countTokens":                                                                   "a:b",
		"/openai/deployments/large/chat/completions":                                                       "large",
		"/OpenAI/Deployments/large/embeddings":                                                             "large",
		"/model/anthropic.claude-3-5-sonnet-20240620-v1:0/invoke":                                          "anthropic.claude-3-5-sonnet-20240620-v1:0",
		"/model/large/invoke-with-response-stream":                                                         "large",
		"/model/large/converse":                                                                            "large",
		"/bedrock/model/arn:aws:bedrock:us-east-1:1:inference-profile/large/converse-stream":               "arn:aws:bedrock:us-east-1:1:inference-profile/large",
		"/v1/projects/p/locations/l/endpoints/large/chat/completions":                                      "large",
		"/endpoints/large/invocations":                                                                     "large",
		"/endpoints/large/invocations-response-stream":                                                     "large",
		"/serving-endpoints/large/invocations":                                                             "large",
		"/serving-endpoints/chat/completions":                                                              "",
		"/models/chat/completions":                                                                         "",
		"/endpoints/large":                                                                                 "",
		"/endpoints":                                                                                       "",
		"/openai/deployments/small/../large/chat/completions":                                              "small large",
		"/openai/deployments/./large/chat/completions":                                                     ". large",
		"/openai/deployments/large;v=1/chat/completions":                                                   "large",
		"/v1beta/models/small:x/../large:generateContent":                                                  "small large",
		"/model/small/../large/invoke":                                                                     "small/../large large",
		"/v1/engines/davinci/completions":                                                                  "davinci",
		"/openai/deployments/small/models/large:x":                                                         "small large",
		"/v1beta/models":                          "",
		"/v1beta/models/":                         "",
		"/v1beta/models/gemini-2.5-pro":           "",
		"/v1beta/models/gemini-2.5-pro:":          "",
		"/v1beta/models/:generateContent":         "",
		"/v1beta/mymodels/gemini:generateContent": "",
		"/v1/chat/completions":                    "",
		"/openai/deployments":                     "",
		"/model/large":                            "",
		":":                                       "",
		"":                                        "",
	} {
		if got := strings.Join(ModelsFromPath(path), " "); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestKindsOfPaths(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions":                           "asks",
		"/v1/chat//Completions/":                         "asks",
		"/v1/completions":                                "asks",
		"/openai/deployments/gpt-4o/chat/completions":    "asks",
		"/v1/messages":                                   "",
		"/v1/responses":                                  "",
		"/v1/chat/completions/abc":                       "",
		"/v1/mychatcompletions":                          "",
		"/v1/files":                                      "files",
		"/upload/v1beta/files":                           "files",
		"/v1/uploads/1/parts":                            "files",
		"/v1/uploads/1/parts/":                           "files",
		"/parts":                                         "",
		"/v1/parts":                                      "",
		"/v1/files/../messages":                          "",
		"/v1/messages/../files":                          "files",
		"/v1/files/../chat/completions":                  "asks",
		"/v1/chat/completions/x/..":                      "asks",
		"/v1/chat/completions;x=1":                       "asks",
		"/files/v1/messages":                             "",
		"/upload/v1beta/models/large:generateContent":    "",
		"/v1/batch/jobs":                                 "jobs",
		"/v1/threads/1/runs":                             "jobs",
		"/v1/x/../batches":                               "jobs",
		"/v1/realtime/calls":                             "jobs",
		"/v1/realtime/client_secrets":                    "jobs",
		"/v1alpha/auth_tokens":                           "jobs",
		"/v1/audio/transcriptions":                       "",
		"/v1/batches":                                    "jobs",
		"/v1/messages/batches":                           "jobs",
		"/v1beta/models/m:batchGenerateContent":          "jobs",
		"/v1/projects/p/locations/l/batchPredictionJobs": "jobs",
		"/model-invocation-job":                          "jobs",
		"/v1/fine_tuning/jobs":                           "jobs",
		"":                                               "",
	} {
		got := ""
		switch {
		case TellsUsageIfAsked(path):
			got = "asks"
		case IsForFiles(path):
			got = "files"
		case IsForJobs(path):
			got = "jobs"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
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
		{"odd bytes", "{\"x\":1e400,\"y\":\"é\\ud800\",\"y\":-0.0,\"stream\":true,\"messages\":[]}", "{\"stream_options\":{\"include_usage\":true},\"x\":1e400,\"y\":\"é\\ud800\",\"y\":-0.0,\"stream\":true,\"messages\":[]}"},
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

// FuzzRequest checks that WithUsage adds include_usage and changes nothing else.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"stream":true,"messages":[]}`, `{"stream":true,"stream_options": null ,"messages":[]}`, `{"stream":true,"messages":[],"stream_options":{ }}`,
		`{"stream":true,"stream_options":{"a":1,"include_usage": false},"messages":[]}`, `{"max_tokens":5,"n":2,"prompt":[1,"x"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		was := string(body)
		asked, _ := readRequest(body)
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
		now, err := readRequest(out)
		asked.NoUsage = false
		if now != asked || err != nil {
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

// A limit counts only in the field from which the API at the path reads it.
func TestIsLimited(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions":                `{"max_completion_tokens": 1}`,
		"/v1/messages":                        `{"max_tokens": 1}`,
		"/v1/responses":                       `{"max_output_tokens": 1}`,
		"/api/chat":                           `{"options": {"num_predict": 1}}`,
		"/v1/models/m:generateContent":        `{"generation_config": {"maxOutputTokens": 1}}`,
		"/v1/models/x:y/../m:GenerateContent": `{"generationConfig": {"max_output_tokens": 1}}`,
		"/model/m/converse":                   `{"inferenceConfig": {"maxTokens": 1}}`,
		"/model/m/converse-stream":            `{"inferenceConfig": {"maxTokens": 1}}`,
	} {
		for _, other := range []string{body, `{"parameters": ` + body + `}`, `{"parameters": {"max_tokens": 1, "max_output_tokens": 1}}`, `{"textGenerationConfig": {"maxOutputTokens": 1, "maxTokens": 1}}`, `{"max_gen_len": 1}`} {
			b := NewBody()
			if _, err := b.Read([]byte(other)); err != nil || b.End() != nil {
				t.Fatal(err)
			}
			if b.IsLimited(path) != (other == body) {
				t.Errorf("%s: %s is limited: %t", path, other, b.IsLimited(path))
			}
		}
	}
}

// Sums of counts don't overflow.
func TestCountsFit(t *testing.T) {
	sum := new(big.Int).Mul(big.NewInt(maxCount), big.NewInt(int64(countsEnd-countsBegin)))
	if !sum.IsInt64() {
		t.Error(sum)
	}
}
