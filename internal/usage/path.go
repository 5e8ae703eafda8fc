package usage

import (
	"slices"
	"strings"
)

// segments are those of a path that aren't empty: servers differ in whether those count.
func segments(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" })
}

// ModelsFromPath returns the models that a path names, whatever the body says:
//
//	Gemini     /v1beta/models/{model}:generateContent
//	Vertex     /v1/projects/{p}/locations/{l}/publishers/{p}/models/{model}:rawPredict, and .../endpoints/{model}:predict
//	Azure      /openai/deployments/{model}/chat/completions
//	Bedrock    /model/{model}/invoke, and converse, and both as streams
//	OpenAI     /v1/engines/{model}/completions, as it was
func ModelsFromPath(path string) (models []string) {
	all := segments(path)
	for i := 0; i+1 < len(all); i++ {
		next := all[i+1]
		switch strings.ToLower(all[i]) {
		case "models", "tunedmodels", "endpoints":
			if name, verb, ok := cutLast(next, ':'); ok && name != "" && verb != "" {
				models = append(models, name)
			}
		case "deployments", "engines":
			if i+2 < len(all) {
				models = append(models, next)
			}
		case "model":
			for j := len(all) - 1; j > i+1; j-- { // an ARN has slashes in it
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

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// TellsUsageIfAsked reports whether a path is that of chats or completions in OpenAI's API, wherever a
// server has it. Streamed, they tell their usage only if asked to.
func TellsUsageIfAsked(path string) bool {
	all := segments(path)
	return len(all) > 0 && strings.EqualFold(all[len(all)-1], "completions")
}

// IsForFiles reports whether a path takes files, which no model answers.
func IsForFiles(path string) bool {
	return slices.ContainsFunc(segments(path), func(s string) bool {
		switch strings.ToLower(s) {
		case "files", "uploads", "upload":
			return true
		}
		return false
	}) && len(ModelsFromPath(path)) == 0
}

// IsForJobs reports whether a path starts jobs that run on after their answer, so that nothing is known of what
// they take: batches of all providers, and OpenAI's fine-tuning.
func IsForJobs(path string) bool {
	return slices.ContainsFunc(segments(path), func(s string) bool {
		_, verb, _ := cutLast(strings.ToLower(s), ':')
		switch verb {
		case "batchgeneratecontent", "asyncbatchembedcontent", "predictlongrunning":
			return true
		}
		switch strings.ToLower(s) {
		case "batches", "batchpredictionjobs", "model-invocation-job", "model-invocation-jobs", "async-invoke", "fine_tuning", "fine-tunes":
			return true
		}
		return false
	})
}
