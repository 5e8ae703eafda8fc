package usage

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Fault says why a request can't be metered, in words for the client.
type Fault struct{ Message string }

func (f *Fault) Error() string { return f.Message }

// Body reads the body of a request as it passes, in parts that may end anywhere. It keeps only what [Asked] contains.
// It isn't safe for concurrent use.
type Body struct {
	scanner scanner
	begun   bool   // the body has had something other than white space
	ended   bool   // the document is complete
	partial []byte // the beginning of a UTF-8 character that continues in the next part

	asked    Asked
	fault    *Fault
	seen     []seenField
	others   []string // models that may answer instead of the requested one
	holder   string   // name of the last object that contains output limits, followed by a dot
	limit    string   // name of the last output limit, preceded by holder
	limits   []string // names of the output limits that are above 0
	isCall   bool     // the body has a field that is typical of calls to models
	isChat   bool
	isPrompt bool
	text     int64 // bytes of text
	tokens   int64 // number of tokens in prompts that are sent as tokens, not as text
	prompts  int64 // number of prompts, each of which gets an answer
	unclear  bool  // an output limit isn't a number above 0, so servers may read it in any way
	start    int64 // offset of the object's first member
	isObject bool
	options  options
}

// NewBody returns a Body that hasn't read anything yet.
func NewBody() *Body {
	b := &Body{}
	b.scanner.visitor = b
	return b
}

// refuse records why the request can't be metered. It keeps only the first reason.
func (b *Body) refuse(format string, args ...any) {
	if b.fault == nil {
		b.fault = &Fault{fmt.Sprintf(format, args...)}
	}
}

// Read reads the next part of the body. closing is the offset in p of the bracket that ends the document, or -1.
//
// If the body can't be metered, the error is a [*Fault]. Such a body isn't strict JSON in UTF-8, or a field that
// affects the cost occurs twice or in an unusual spelling, so that servers could read the body in more than one way.
func (b *Body) Read(p []byte) (closing int, err error) {
	closing = -1
	if !b.isUTF8(p) {
		return closing, &Fault{"the body must be in UTF-8"}
	}
	rest := p
	if !b.begun {
		rest = bytes.TrimLeft(p, blanks)
		b.scanner.read += int64(len(p) - len(rest))
		b.begun = len(rest) > 0
	}
	if !b.ended {
		n := b.scanner.feed(rest)
		rest = rest[n:]
		if b.ended = b.scanner.state == finished; b.ended && len(rest) < len(p) {
			closing = len(p) - len(rest) - 1
		}
	}
	switch {
	case b.fault != nil:
		return closing, b.fault
	case b.scanner.state == broken:
		return closing, &Fault{fmt.Sprintf("the body must be JSON in UTF-8, without a byte order mark, NaN or comments, and not nested deeper than %d: byte %d can't be read", maxDepth, b.scanner.read)}
	case b.ended && len(bytes.TrimLeft(rest, blanks)) > 0:
		return closing, &Fault{"the body must be one JSON document, and something follows it"}
	}
	return closing, nil
}

// isUTF8 reports whether the next part is valid UTF-8. Servers differ in how they read other bytes.
func (b *Body) isUTF8(p []byte) bool {
	for len(b.partial) > 0 && len(p) > 0 && !utf8.FullRune(b.partial) {
		b.partial, p = append(b.partial, p[0]), p[1:]
	}
	if utf8.FullRune(b.partial) {
		if !utf8.Valid(b.partial) {
			return false
		}
		b.partial = b.partial[:0]
	}
	end := len(p)
	for i := len(p) - 1; i >= max(0, len(p)-utf8.UTFMax); i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				end = i
			}
			break
		}
	}
	b.partial = append(b.partial, p[end:]...)
	return utf8.Valid(p[:end])
}

const blanks = " \t\r\n"

// Others returns the models that may answer instead of the requested one. Requests to OpenRouter and LiteLLM can name
// such models.
func (b *Body) Others() []string { return b.others }

// IsCall reports whether the body may be a call to a model. Such a body has a field that is typical of calls, or isn't
// an object.
func (b *Body) IsCall() bool { return b.begun && (b.isCall || !b.isObject) }

// IsLimited reports whether the path belongs to a known API that obeys one of the output limits in the body. Servers
// ignore the limit fields of other APIs.
func (b *Body) IsLimited(path string) bool {
	for _, segments := range readings(path) {
		names := limitsAt(segments)
		if !slices.ContainsFunc(b.limits, func(name string) bool { return slices.Contains(names, name) }) {
			return false
		}
	}
	return true
}

// End must be called at the end of the body. If the document isn't complete, the error is a [*Fault].
func (b *Body) End() error {
	if _, err := b.Read([]byte{'\n'}); err != nil { // if the document is a number, the newline completes it
		return err
	}
	if b.begun && !b.ended {
		return &Fault{"the body must be JSON, and ends in the midst of it"}
	}
	return nil
}

// Asked returns what the body asks for, as far as it has been read.
func (b *Body) Asked() Asked {
	text := b.text
	if s := &b.scanner; s.isString() && (s.at == atText || s.at == atTexts || s.at == atPromptList || s.at == atAPrompt || s.at == atData) {
		text += s.size // the length of a string that isn't complete yet
	}
	a := b.asked
	a.Input = (text+bytesPerToken-1)/bytesPerToken + b.tokens
	a.Choices = min(max(a.Choices, 1)*max(b.prompts, 1), maxCount)
	if b.unclear {
		a.MaxOutput = Amount{}
	}
	_, a.NoUsage = b.usageEdit()
	return a
}

// InFile reports whether the last part ended inside a string that isn't text, such as a picture, sound or another file.
func (b *Body) InFile() bool { return b.scanner.isString() && b.scanner.at == anywhere }
