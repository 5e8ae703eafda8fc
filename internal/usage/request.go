package usage

import (
	"bytes"
	"strings"
)

// Asked is what a request asks a model for.
type Asked struct {
	// Model is its name, or "". Gemini's is in the path: see [ModelFromPath].
	Model string
	// Stream says that the answer is to be streamed. Gemini's requests say so in the path.
	Stream bool
	// NoUsage says that the answer is to be streamed, and won't tell its usage unless [WithUsage]
	// asks for it. That holds for OpenAI's chats only; see there.
	NoUsage bool
	// Input estimates the input tokens: a quarter of the bytes of all text in the request, rounded
	// up.
	//
	// OpenAI's and Google's own rule of thumb is four characters a token, which fits English prose
	// and is low for code. Other scripts have fewer characters a token but more bytes a character,
	// so bytes err less than characters; Chinese still comes out somewhat low. It is a number to
	// reserve, until the answer tells the truth.
	//
	// Text is what people, models and tools say, and what tools are described with. Pictures, sound
	// and files are left out. Texts that come as tokens already, as for embeddings, count as many.
	Input int64
	// MaxOutput is how many tokens a choice may have at most. Of several limits in a request the
	// highest counts, since servers differ in which they obey.
	MaxOutput Amount
	// Choices is how many answers are to be written: at least 1.
	Choices int64
}

// bytesPerToken is explained at [Asked].
const bytesPerToken = 4

// Output is how many tokens the whole answer may have at most.
func (a Asked) Output() Amount {
	switch {
	case !a.MaxOutput.Known:
		return Amount{}
	case a.MaxOutput.N > maxCount/max(a.Choices, 1):
		return Amount{maxCount, true}
	}
	return Amount{a.MaxOutput.N * max(a.Choices, 1), true}
}

// ReadRequest reads a request's body. What it doesn't find is unknown, and so is all of a body that
// isn't a JSON object. Of a name that comes twice, the last counts, as with most servers; but of
// limits and choices, the highest.
func ReadRequest(body []byte) Asked {
	r, ok := readRequest(body)
	if !ok {
		return Asked{Choices: 1}
	}
	_, r.asked.NoUsage = r.usageEdit()
	return r.sum()
}

// ReadStart is ReadRequest for the beginning of a body, and for one that isn't quite JSON, as some
// servers accept: what stands before the end, or the fault, counts.
func ReadStart(body []byte) Asked {
	r := &request{}
	s := scanner{visitor: r}
	s.feed(body)
	if s.isString() && (s.at == atText || s.at == atTexts || s.at == atPromptList || s.at == atAPrompt || s.at == atData) {
		r.text += s.size
	}
	return r.sum()
}

// sum adds up what was found.
func (r *request) sum() Asked {
	r.asked.Input = (r.text+bytesPerToken-1)/bytesPerToken + r.tokens
	r.asked.Choices = min(max(r.asked.Choices, 1)*max(r.prompts, 1), maxCount)
	if r.unclear {
		r.asked.MaxOutput = Amount{}
	}
	return r.asked
}

// readRequest reports whether a body is a request at all: one JSON object.
func readRequest(body []byte) (*request, bool) {
	r := &request{}
	s := scanner{visitor: r}
	n := s.feed(body)
	return r, r.isObject && s.state == finished && len(bytes.TrimLeft(body[n:], " \t\r\n")) == 0
}

// ModelFromPath is the name of a model in a path of Gemini's API, such as
// /v1beta/models/gemini-2.5-pro:generateContent, or "" if there is none.
func ModelFromPath(path string) string {
	dir, last := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, last = path[:i], path[i+1:]
	}
	colon := strings.LastIndexByte(last, ':')
	if colon < 0 || colon == len(last)-1 || colon > maxKept {
		return ""
	}
	if !strings.HasSuffix(dir, "/models") && !strings.HasSuffix(dir, "/tunedModels") {
		return ""
	}
	return last[:colon]
}

// Places in a request.
const (
	anywhere     = firstPlace + iota // in an object or array that may have text in it
	atMessages                       // what a chat has, and other requests of OpenAI's haven't
	atStream                         // whether to stream
	atOptions                        // stream_options
	atInclude                        // include_usage of these
	atGeneration                     // Gemini's generationConfig
	atRunOptions                     // Ollama's options
	atMaxOutput
	atChoiceCount
	atName       // the model's
	atText       // text, or an array with texts in it
	atTexts      // the same, or tokens in its place
	atPromptList // the same, of which each is answered by itself
	atAPrompt    // one of several
	atData       // every string in it is text
)

// requestFields are the fields that matter, by the place of the object that they are in.
var requestFields = map[place]map[string]place{
	top: {
		"model":                 atName,
		"messages":              atMessages,
		"stream":                atStream,
		"stream_options":        atOptions,
		"max_tokens":            atMaxOutput,
		"max_completion_tokens": atMaxOutput,
		"max_output_tokens":     atMaxOutput,
		"generationConfig":      atGeneration,
		"generation_config":     atGeneration,
		"options":               atRunOptions,
		"n":                     atChoiceCount,
		"best_of":               atChoiceCount,
		"input":                 atTexts,
		"prompt":                atPromptList,
		"suffix":                atText,
		"system":                atText,
		"instructions":          atText,
		"query":                 atText,
		"documents":             atText,
	},
	atOptions:    {"include_usage": atInclude},
	atRunOptions: {"num_predict": atMaxOutput},
	atGeneration: {
		"maxOutputTokens":   atMaxOutput,
		"max_output_tokens": atMaxOutput,
		"candidateCount":    atChoiceCount,
		"candidate_count":   atChoiceCount,
	},
}

// textFields are the fields of other objects that have text in them.
var textFields = map[string]place{
	"content":      atText,
	"text":         atText,
	"thinking":     atText,
	"arguments":    atText, // of a call of a tool
	"output":       atText, // and its result
	"description":  atText, // of a tool
	"input":        atData, // the same at Anthropic, as JSON
	"input_schema": atData,
	"parameters":   atData,
	"args":         atData, // at Gemini
	"response":     atData,
}

// request gathers what is asked for.
type request struct {
	asked    Asked
	isObject bool
	isChat   bool
	text     int64 // bytes
	tokens   int64 // in place of text
	prompts  int64 // each of which is answered
	unclear  bool  // a limit of the output isn't a number above 0: who knows what the server makes of it
	body     int64 // the offset of its first member
	options  options
}

// options is what a request has as stream_options.
type options struct {
	kind     byte  // '{', that of a scalar, or 0 for none
	from, to int64 // if it is a scalar
	body     int64 // the offset of its first member, if it is an object
	empty    bool
	include  scalar // its include_usage; 0 for none
}

var _ visitor = (*request)(nil)

func (r *request) member(of place, name []byte) place {
	if of == atData {
		return atData
	}
	if of == atOptions {
		r.options.empty = false
	}
	if p := requestFields[of][string(name)]; p != nowhere {
		return p
	}
	if p := textFields[string(name)]; p != nowhere {
		return p
	}
	return anywhere
}

func (r *request) element(of place) place {
	switch of {
	case atText, atTexts, atData:
		return of
	case atPromptList:
		return atAPrompt
	case atAPrompt:
		return atTexts
	}
	return anywhere
}

func (r *request) open(p place, bracket byte, at int64) {
	switch p {
	case top:
		r.isObject, r.body = bracket == '{', at
	case atMessages:
		r.isChat = bracket == '['
	case atAPrompt:
		r.prompts++
	case atMaxOutput:
		r.unclear = true
	case atStream:
		r.asked.Stream = false
	case atOptions:
		r.options = options{kind: bracket, body: at, empty: true}
	case atInclude:
		r.options.include = scalar{kind: bracket}
	}
}

func (r *request) close(place, byte) {}

func (r *request) scalar(p place, v scalar) {
	switch p {
	case atText, atTexts, atPromptList, atAPrompt, atData:
		if v.kind == '"' {
			r.text += v.size
		} else if v.kind == '0' && (p == atTexts || p == atAPrompt) {
			r.tokens++
		}
		if v.kind == '"' && p == atAPrompt {
			r.prompts++
		}
	case atMaxOutput:
		if n := v.limit(); n.Known {
			r.asked.MaxOutput = Amount{max(n.N, r.asked.MaxOutput.N), true}
		} else {
			r.unclear = true
		}
	case atChoiceCount:
		r.asked.Choices = max(r.asked.Choices, v.limit().N)
	case atName:
		if v.kind == '"' {
			r.asked.Model = string(v.text)
		}
	case atMessages:
		r.isChat = false
	case atStream:
		r.asked.Stream = v.kind == 't'
	case atOptions:
		r.options = options{kind: v.kind, from: v.from, to: v.to}
	case atInclude:
		r.options.include = v
	}
}
