package usage

// Places in an answer. A place says what part of the document the scanner is reading.
const (
	atInner    = firstPlace + iota // a message or a response that is inside an event
	atUsage                        // usage, usageMetadata
	atInputs                       // details of the input
	atModel                        // the model's name
	atType                         // an event's type
	atChoices                      // choices, candidates
	atDelta                        // Anthropic's message_delta
	atFeedback                     // Gemini's feedback on a prompt that it blocks
	atReason                       // why an answer has ended; null or empty until then
	atDone                         // Ollama's field that says that an answer is complete
	countsBegin
)

// Places of token counts in an answer.
const (
	atPrompt       = countsBegin + iota // including cached input
	atToolPrompt                        // Gemini's input from tools, which atPrompt excludes
	atInput                             // including cached input, except in Anthropic's answers
	atCached                            // part of atPrompt
	atCacheRead                         // Anthropic's field, which isn't part of atInput
	atCacheCreated                      // Anthropic's field, which isn't part of atInput
	atOutput
	atCandidates // Gemini's output without thoughts
	atThoughts
	atTotal
	countsEnd
)

// answerFields has the fields that matter, by the place of the object that contains them.
var answerFields = [countsBegin]map[string]place{
	top: {
		"usage":             atUsage,
		"usageMetadata":     atUsage,
		"model":             atModel,
		"modelVersion":      atModel,
		"message":           atInner,
		"response":          atInner,
		"type":              atType,
		"choices":           atChoices,
		"candidates":        atChoices,
		"delta":             atDelta,
		"promptFeedback":    atFeedback,
		"done":              atDone,
		"prompt_eval_count": atPrompt,
		"eval_count":        atOutput,
	},
	atInner: {
		"usage":         atUsage,
		"usageMetadata": atUsage,
		"model":         atModel,
		"modelVersion":  atModel,
	},
	atUsage: {
		"prompt_tokens":               atPrompt,
		"prompt_tokens_details":       atInputs,
		"completion_tokens":           atOutput,
		"total_tokens":                atTotal,
		"input_tokens":                atInput,
		"input_tokens_details":        atInputs,
		"output_tokens":               atOutput,
		"cache_read_input_tokens":     atCacheRead,
		"cache_creation_input_tokens": atCacheCreated,
		"inputTokens":                 atInput, // Bedrock's field, which excludes cached input, too
		"outputTokens":                atOutput,
		"totalTokens":                 atTotal,
		"cacheReadInputTokens":        atCacheRead,
		"cacheWriteInputTokens":       atCacheCreated,
		"promptTokenCount":            atPrompt,
		"toolUsePromptTokenCount":     atToolPrompt,
		"cachedContentTokenCount":     atCached,
		"candidatesTokenCount":        atCandidates,
		"thoughtsTokenCount":          atThoughts,
		"totalTokenCount":             atTotal,
	},
	atInputs:   {"cached_tokens": atCached},
	atChoices:  {"finish_reason": atReason, "finishReason": atReason},
	atDelta:    {"stop_reason": atReason},
	atFeedback: {"blockReason": atReason},
}

// answer collects what an answer reports. An answer is one document or, if it is streamed, one document for each event.
type answer struct {
	told         // from complete documents
	current told // from the current document, which counts only when it is complete
}

type told struct {
	counts counts
	model  string
	over   bool // the answer, or one of its choices, is complete
}

var _ visitor = (*answer)(nil)

func (a *answer) member(of place, name []byte) place {
	if of >= countsBegin {
		return nowhere
	}
	return answerFields[of][string(name)]
}

func (a *answer) element(of place) place {
	if of == top || of == atChoices { // Gemini streams an array, each of whose elements is like an event
		return of
	}
	return nowhere
}

func (a *answer) open(p place, bracket byte, _ int64) {
	switch {
	case p == top && bracket == '{':
		a.current = told{}
	case p == atUsage && bracket == '{':
		a.current.counts = counts{} // if the field occurs twice, the last one counts
	case p >= countsBegin:
		*a.current.counts.at(p) = count{told: true}
	}
}

func (a *answer) close(p place, bracket byte) {
	if p != top || bracket != '}' {
		return
	}
	a.counts.merge(&a.current.counts)
	if a.current.model != "" {
		a.model = a.current.model
	}
	a.over = a.over || a.current.over
}

func (a *answer) scalar(p place, v scalar) {
	if v.kind == 'n' {
		return
	}
	switch {
	case p >= countsBegin:
		*a.current.counts.at(p) = count{v.count(), true}
	case p == atDone:
		a.current.over = a.current.over || v.kind == 't'
	case v.kind != '"':
	case p == atModel:
		a.current.model = a.model
		if a.model != string(v.text) { // every event of a stream has the model, so avoid a copy for each
			a.current.model = string(v.text)
		}
	case p == atReason:
		switch string(v.text) {
		case "", "null", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED": // some servers write these values before the end
		default:
			a.current.over = true
		}
	case p == atType:
		switch string(v.text) {
		case "message_stop", "response.completed", "response.incomplete", "response.failed":
			a.current.over = true
		}
	}
}
