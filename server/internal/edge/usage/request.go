package usage

import "strings"

// Asked is what a request asks a model for.
type Asked struct {
	// Model is the model's name, or "". In some APIs, the path names the model: see [ModelsFromPath].
	Model string
	// Stream means that the client wants a streamed answer. Gemini's requests say so in the path instead.
	Stream bool
	// NoUsage means that the answer will be streamed, and won't report its usage unless [WithUsage] changes the
	// request. It is set only for OpenAI's chats and completions.
	NoUsage bool
	// Input is an estimate of the input tokens: a quarter of the bytes of all text in the request, rounded up. Reserve
	// this number until the answer reports the real one.
	//
	// Four characters per token is the providers' rule of thumb. It is right for English prose, and too low for code.
	// Other scripts have fewer characters per token but more bytes per character, so bytes are the better measure.
	// Pictures, sound and files don't count. Text that is sent as tokens counts one for each token.
	Input int64
	// MaxOutput is how many tokens each choice may have at most. If a request has several limits, it is the highest of
	// them, because servers differ in which limit they obey.
	MaxOutput Amount
	// Choices is how many answers the model should write. It is at least 1.
	Choices int64
}

// maxOthers is the maximum number of models that a request may name as substitutes for its model.
const maxOthers = 16

// bytesPerToken is how many bytes of text count as one token: see [Asked].
const bytesPerToken = 4

// Output returns how many tokens the whole answer may have at most.
func (a Asked) Output() Amount {
	if !a.MaxOutput.Known {
		return Amount{}
	}
	return a.OutputOf(a.MaxOutput.N)
}

// OutputOf returns the number of tokens in the whole answer if each choice has the given number.
func (a Asked) OutputOf(each int64) Amount {
	if each > maxCount/max(a.Choices, 1) {
		return Amount{maxCount, true}
	}
	return Amount{each * max(a.Choices, 1), true}
}

// Places in a request. A place says what part of the document the scanner is reading.
const (
	anywhere     = firstPlace + iota // in an object or array that may have text in it
	atMessages                       // messages, a field that only OpenAI's chats have
	atStream                         // whether to stream
	atOptions                        // stream_options
	atInclude                        // include_usage in stream_options
	atGeneration                     // Gemini's generationConfig, and similar fields of other APIs
	atRunOptions                     // Ollama's options
	atMaxOutput
	atChoiceCount
	atBackground // whether to run as a background job
	atName       // the name of the model
	atOthers     // models that may answer instead of the requested one, as names or as requests
	atOthersOf   // models that may answer instead of the one that is the member's name
	atSubstitute // one of the models in atOthersOf
	atText       // text, or an array that contains text
	atTexts      // the same as atText, or tokens instead of text
	atPromptList // the same as atTexts, but each text is a prompt with its own answer
	atAPrompt    // one of several prompts
	atData       // any value, in which every string is text
	requestPlaces
)

// requestFields has the fields that matter, by the place of the object that contains them.
var requestFields = [requestPlaces]map[string]place{
	top: {
		"model":                 atName,
		"models":                atOthers,
		"fallbacks":             atOthers,
		"messages":              atMessages,
		"stream":                atStream,
		"stream_options":        atOptions,
		"max_tokens":            atMaxOutput,
		"max_completion_tokens": atMaxOutput,
		"max_output_tokens":     atMaxOutput,
		"max_tokens_to_sample":  atMaxOutput,
		"max_gen_len":           atMaxOutput,
		"n_predict":             atMaxOutput,
		"maxTokens":             atMaxOutput,
		"generationConfig":      atGeneration,
		"generation_config":     atGeneration,
		"inferenceConfig":       atGeneration,
		"textGenerationConfig":  atGeneration,
		"parameters":            atGeneration,
		"options":               atRunOptions,
		"n":                     atChoiceCount,
		"best_of":               atChoiceCount,
		"background":            atBackground,
		"deferred":              atBackground,
		"input":                 atTexts,
		"prompt":                atPromptList,
		"suffix":                atText,
		"system":                atText,
		"instructions":          atText,
		"query":                 atText,
		"documents":             atText,

		"context_window_fallbacks": atOthers, // LiteLLM's field
		"content_policy_fallbacks": atOthers,
	},
	atOptions:    {"include_usage": atInclude},
	atRunOptions: {"num_predict": atMaxOutput},
	atGeneration: {
		"maxOutputTokens":   atMaxOutput,
		"max_output_tokens": atMaxOutput,
		"maxTokens":         atMaxOutput,
		"max_tokens":        atMaxOutput,
		"max_new_tokens":    atMaxOutput,
		"maxTokenCount":     atMaxOutput,
		"candidateCount":    atChoiceCount,
		"candidate_count":   atChoiceCount,
	},
}

// foldedFields has the names of requestFields in the form that fold returns, for servers that ignore case, dashes and
// underscores. It leaves out fields with text, because missing one of these affects only an estimate.
var foldedFields = func() (out [requestPlaces]map[string]string) {
	for p, fields := range requestFields {
		for name, at := range fields {
			if at == atText || at == atTexts {
				continue
			}
			if out[p] == nil {
				out[p] = map[string]string{}
			}
			out[p][fold(name)] = name
		}
	}
	return out
}()

var dashes = strings.NewReplacer("_", "", "-", "")

// fold returns the same name for all names that differ only in case (as in [strings.EqualFold]), dashes and
// underscores.
func fold(name string) string {
	return dashes.Replace(strings.ToLower(strings.ToUpper(name)))
}

// textFields are fields with text that objects in any other place may have.
var textFields = map[string]place{
	"content":      atText,
	"text":         atText,
	"thinking":     atText,
	"arguments":    atText, // arguments of a tool call
	"output":       atText, // result of the tool call
	"description":  atText, // description of a tool
	"input":        atData, // arguments of a tool call in Anthropic's API, as JSON
	"input_schema": atData,
	"parameters":   atData,
	"args":         atData, // arguments of a tool call in Gemini's API
	"response":     atData,
}

// seenField is a field of requestFields that has occurred in an object that is still open.
type seenField struct {
	name  string
	depth int
}

// options is the value of stream_options in a request.
type options struct {
	kind     byte  // '{' for an object, or the kind of a scalar, or 0 if the field is missing
	from, to int64 // offsets of the value if it is a scalar
	body     int64 // offset of the first member if the value is an object
	empty    bool
	include  scalar // include_usage; its kind is 0 if the field is missing
}

var _ visitor = (*Body)(nil)

func (b *Body) member(of place, name []byte) place {
	if of == atData {
		b.text += b.scanner.size // models read the names of members, too
		return atData
	}
	if of == atOptions {
		b.options.empty = false
	}
	if of == atOthers {
		return b.fallback(name)
	}
	if p := requestFields[of][string(name)]; p != nowhere {
		b.isCall = b.isCall || of == top
		switch p {
		case atGeneration, atRunOptions:
			b.holder = string(name) + "."
		case atMaxOutput:
			if b.limit = string(name); of != top {
				b.limit = b.holder + b.limit
			}
		}
		b.once(string(name))
		return p
	}
	b.refuseFolded(of, name)
	if p := textFields[string(name)]; p != nowhere {
		return p
	}
	return anywhere
}

func (b *Body) refuseFolded(of place, name []byte) {
	if folded := foldedFields[of]; folded != nil && len(name) > 0 {
		if right, odd := folded[fold(string(name))]; odd {
			b.refuse("%q must be spelled %q", name, right)
		}
	}
}

// fallback returns the place of an object's member inside a list of fallbacks. LiteLLM reads fallbacks in three forms:
// as ["large"], as requests such as [{"model": "large", "messages": [...]}], and as [{"small": ["large"]}].
func (b *Body) fallback(name []byte) place {
	switch p := requestFields[top][string(name)]; p {
	case atName, atOthers:
		b.once(string(name))
		return atOthers
	case atMaxOutput, atChoiceCount, atGeneration, atRunOptions, atBackground:
		b.refuse("a fallback can't have %q: give it for the whole call", name)
	case nowhere:
		b.refuseFolded(top, name)
		return atOthersOf
	case atText, atTexts, atPromptList:
		return p
	}
	return anywhere
}

// once records a field, and refuses the body if the field occurs twice in the same object.
func (b *Body) once(name string) {
	for i := len(b.seen) - 1; i >= 0 && b.seen[i].depth == b.scanner.depth; i-- {
		if b.seen[i].name == name {
			b.refuse("%q is given twice, and servers differ in which they take: give it once", name)
			return
		}
	}
	b.seen = append(b.seen, seenField{name, b.scanner.depth})
}

func (b *Body) element(of place) place {
	switch of {
	case atText, atTexts, atData, atOthers:
		return of
	case atOthersOf:
		return atSubstitute
	case atPromptList:
		return atAPrompt
	case atAPrompt:
		return atTexts
	}
	return anywhere
}

func (b *Body) open(p place, bracket byte, at int64) {
	switch p {
	case top:
		b.isObject, b.start = bracket == '{', at
	case atMessages:
		b.isChat = bracket == '['
	case atPromptList:
		b.isPrompt = true
	case atAPrompt:
		b.prompts++
	case atMaxOutput, atChoiceCount:
		b.refuse(notNumber)
	case atBackground:
		b.refuse(inBackground)
	case atStream:
		b.asked.Stream = true // some server may treat the value as true
	case atOptions:
		if b.options = (options{kind: bracket, body: at, empty: true}); bracket != '{' {
			b.refuse(notOptions)
		}
	case atInclude:
		b.refuse(notBool)
	}
}

func (b *Body) close(place, byte) {
	for len(b.seen) > 0 && b.seen[len(b.seen)-1].depth > b.scanner.depth {
		b.seen = b.seen[:len(b.seen)-1]
	}
}

const (
	notNumber    = "limits such as max_tokens and n must be numbers"
	notOptions   = "stream_options must be an object"
	notBool      = "stream_options.include_usage must be true or false"
	inBackground = "what a job in the background takes can't be metered: leave background and deferred out"
)

func (b *Body) scalar(p place, v scalar) {
	if v.kind == 'n' && p != atOptions && p != atInclude {
		return // null means that the field is missing
	}
	switch p {
	case atText, atTexts, atPromptList, atAPrompt, atData:
		if v.kind == '"' {
			b.text += v.size
			b.isPrompt = b.isPrompt || p == atPromptList
		} else if v.kind == '0' && (p == atTexts || p == atAPrompt) {
			b.tokens++
		}
		if v.kind == '"' && p == atAPrompt {
			b.prompts++
		}
	case atMaxOutput:
		switch n, ok := v.limit(); {
		case !ok:
			b.refuse(notNumber)
		case n.Known:
			b.asked.MaxOutput = Amount{max(n.N, b.asked.MaxOutput.N), true}
			b.limits = append(b.limits, b.limit)
		default:
			b.unclear = true
		}
		if b.unclear && b.asked.MaxOutput.Known {
			b.refuse("one limit of the output is above 0 and another isn't: leave one of them out")
		}
	case atChoiceCount:
		n, ok := v.limit()
		if !ok {
			b.refuse(notNumber)
		}
		b.asked.Choices = max(b.asked.Choices, n.N)
	case atName, atOthers, atSubstitute:
		switch {
		case v.kind != '"':
		case v.text == nil:
			b.refuse("the name of the model is longer than %d bytes", maxKept)
		case p == atName:
			b.asked.Model = string(v.text)
		case len(b.others) == maxOthers:
			b.refuse("more than %d models may answer", maxOthers)
		default:
			b.others = append(b.others, string(v.text))
		}
	case atStream:
		b.asked.Stream = v.isTrue() || v.kind == '"' && v.size > 0
	case atBackground:
		if v.isTrue() {
			b.refuse(inBackground)
		}
	case atOptions:
		if b.options = (options{kind: v.kind, from: v.from, to: v.to}); v.kind != 'n' {
			b.refuse(notOptions)
		}
	case atInclude:
		if b.options.include = v; v.kind == '"' || v.kind == '0' {
			b.refuse(notBool)
		}
	}
}
