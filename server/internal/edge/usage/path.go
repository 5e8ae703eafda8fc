package usage

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// readings returns the different ways in which servers may read a path, each as a list of segments: with . and .. left
// in the path and, if that makes a difference, resolved. It leaves out empty segments, and what follows a semicolon in
// a segment, because many servers ignore these.
func readings(of string) [][]string {
	out := [][]string{segments(of)}
	if clean := segments(path.Clean("/" + of)); !slices.Equal(clean, out[0]) {
		out = append(out, clean)
	}
	return out
}

func segments(path string) []string {
	all := strings.Split(path, "/")
	for i, s := range all {
		all[i], _, _ = strings.Cut(s, ";")
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// ModelsFromPath returns the models that a path names, independently of the body. It knows these paths:
//
//	Gemini     /v1beta/models/{model}:generateContent
//	Vertex     /v1/projects/{p}/locations/{l}/publishers/{p}/models/{model}:rawPredict, .../endpoints/{model}:predict,
//	           and .../endpoints/{model}/chat/completions
//	Azure      /openai/deployments/{model}/chat/completions
//	Bedrock    /model/{model}/invoke, and converse, and both as streams
//	SageMaker  /endpoints/{model}/invocations, and Databricks /serving-endpoints/{model}/invocations
//	OpenAI     /v1/engines/{model}/completions, in an earlier version of the API
func ModelsFromPath(path string) (models []string) {
	for _, all := range readings(path) {
		models = append(models, modelsFrom(all)...)
	}
	return models
}

func modelsFrom(all []string) (models []string) {
	for i := 0; i+1 < len(all); i++ {
		next := all[i+1]
		switch kind := strings.ToLower(all[i]); kind {
		case "models", "tunedmodels", "endpoints", "serving-endpoints":
			if name, verb, ok := cutLast(next, ':'); ok && name != "" && verb != "" {
				models = append(models, name)
			} else if called := strings.ToLower(strings.Join(all[i+2:], "/")); strings.HasSuffix(kind, "endpoints") &&
				!strings.EqualFold(next, "openapi") && slices.Contains(calls, called) {
				models = append(models, next) // openapi isn't a model; the body names the model
			}
		case "deployments", "engines":
			if i+2 < len(all) {
				models = append(models, next)
			}
		case "model":
			for j := len(all) - 1; j > i+1; j-- { // a model may be an ARN, which may contain slashes
				switch strings.ToLower(all[j]) {
				case "invoke", "invoke-with-response-stream", "invoke-with-bidirectional-stream", "converse", "converse-stream":
					models = append(models, strings.Join(all[i+1:j], "/"))
					j = 0
				}
			}
		}
	}
	return models
}

// calls lists what may follow a model's name in the path of a call.
var calls = []string{"chat/completions", "invocations", "invocations-response-stream"}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// TellsUsageIfAsked reports whether a path belongs to the chats or completions of OpenAI's API, wherever a server
// mounts it. Streamed answers of these report the usage only if the request asks for it.
func TellsUsageIfAsked(path string) bool {
	return slices.ContainsFunc(readings(path), func(all []string) bool {
		return len(all) > 0 && strings.EqualFold(all[len(all)-1], "completions")
	})
}

// limitFields maps the last segment of a path to the fields of an API with this path that set output limits.
var limitFields = map[string][]string{
	"completions":           {"max_tokens", "max_completion_tokens"},
	"messages":              {"max_tokens"},
	"responses":             {"max_output_tokens"},
	"generatecontent":       geminiLimits,
	"streamgeneratecontent": geminiLimits,
	"converse":              {"inferenceConfig.maxTokens"},
	"converse-stream":       {"inferenceConfig.maxTokens"},
}

var geminiLimits = []string{
	"generationConfig.maxOutputTokens", "generationConfig.max_output_tokens",
	"generation_config.maxOutputTokens", "generation_config.max_output_tokens",
}

// limitsAt returns the fields that set output limits in the API at a path. If the API is unknown, it returns nil.
func limitsAt(segments []string) []string {
	if len(segments) == 0 {
		return nil
	}
	last := strings.ToLower(segments[len(segments)-1])
	if _, verb, ok := cutLast(last, ':'); ok {
		last = verb
	}
	if n := len(segments); n > 1 && strings.EqualFold(segments[n-2], "api") && (last == "chat" || last == "generate") { // Ollama's API
		return []string{"options.num_predict"}
	}
	return limitFields[last]
}

// files matches paths that accept files. No model answers at such a path.
var files = regexp.MustCompile(`(^|/)(files|uploads?)(/[^/]+/parts)?$`)

// IsForFiles reports whether a path accepts files, however a server reads the path.
func IsForFiles(path string) bool {
	for _, all := range readings(path) {
		if !files.MatchString(strings.ToLower(strings.Join(all, "/"))) {
			return false
		}
	}
	return len(ModelsFromPath(path)) == 0
}

// jobs matches the segments of paths that start jobs. Jobs continue after the response.
var jobs = regexp.MustCompile(`(?i)^(batch|batches|batchpredictionjobs|model-invocation-jobs?|async|async-invoke|fine_tuning|fine-tunes)$` +
	`|^(embed-jobs|runs|realtime|auth_tokens)$|:(batchgeneratecontent|asyncbatchembedcontent|predictlongrunning)$`)

// IsForJobs reports whether a path starts a job that continues after the response, so that the usage isn't known then.
// Such jobs are batches of any provider, OpenAI's runs and fine-tuning, and sessions that the client then uses over
// another connection.
func IsForJobs(path string) bool {
	return slices.ContainsFunc(slices.Concat(readings(path)...), jobs.MatchString)
}
