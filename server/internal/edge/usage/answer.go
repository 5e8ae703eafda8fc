package usage

// Places in an answer: what the scanner is looking at.
const (
	atInner    = firstPlace + iota // a message or a response inside an event
	atUsage                        // usage, usageMetadata
	atInputs                       // details of the input
	atModel                        // the model's name
	atType                         // an event's type
	atChoices                      // choices, candidates
	atDelta                        // Anthropic's message_delta
	atFeedback                     // Gemini's feedback on a prompt that it blocks
	atReason                       // why an answer ended; null or empty while it goes on
	atDone                         // Ollama's sign that an answer is over
	countsBegin
)

// Places of token counts in an answer.
const (
	atPrompt       = countsBegin + iota // includes cached input
	atToolPrompt                        // Gemini's input from tools, which atPrompt excludes
	atInput                             // includes cached input, except in Anthropic's answers
	atCached                            // part of atPrompt
	atCacheRead                         // Anthropic's; not part of atInput
	atCacheCreated                      // Anthropic's; not part of atInput
	atOutput
	atCandidates // Gemini's output without thoughts
	atThoughts
	atTotal
	countsEnd
)

// answerFields has the relevant fields, by the place of the object that contains them.
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
		"inputTokens":                 atInput, // Bedrock's, which excludes cached input, too
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

// answer collects what an answer reports, from one document or from one for each event of a stream.
type answer struct {
	told         // from complete documents
	current told // from the current document; it counts when that is complete
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
	if of == top || of == atChoices { // Gemini streams an array whose elements are like events
		return of
	}
	return nowhere
}

func (a *answer) open(p place, bracket byte, _ int64) {
	switch {
	case p == top && bracket == '{':
		a.current = told{}
	case p == atUsage && bracket == '{':
		a.current.counts = counts{} // if there are two, the last one counts
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
		if a.model != string(v.text) { // avoids a copy for each event, since every event of a stream has it
			a.current.model = string(v.text)
		}
	case p == atReason:
		switch string(v.text) {
		case "", "null", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED": // some servers write these before the end
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
