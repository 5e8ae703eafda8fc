package usage

import "slices"

// edit replaces part of a body.
type edit struct {
	from, to int64
	text     string
}

// usageEdit returns the edit that makes a request ask for the usage. If the request needs no edit, it returns false.
func (b *Body) usageEdit() (edit, bool) {
	if !b.isChat && !b.isPrompt || !b.asked.Stream {
		return edit{}, false
	}
	o := &b.options
	switch {
	case o.kind == 0:
		return edit{b.start, b.start, `"stream_options":{"include_usage":true},`}, true
	case o.kind == 'n':
		return edit{o.from, o.to, `{"include_usage":true}`}, true
	case o.empty:
		return edit{o.body, o.body, `"include_usage":true`}, true
	case o.include.kind == 0:
		return edit{o.body, o.body, `"include_usage":true,`}, true
	case o.include.kind == 'f', o.include.kind == 'n':
		return edit{o.include.from, o.include.to, "true"}, true
	}
	return edit{}, false
}

// WithUsage changes the body of a streamed chat or completion in OpenAI's API, so that the answer will report its
// usage. In the body that it returns, stream_options.include_usage is true, and every other byte is unchanged. The
// second result reports whether anything was changed. WithUsage doesn't modify its argument.
//
// A body with messages counts as a chat. Anthropic's bodies have messages, too, but Anthropic's API rejects
// stream_options, so call [TellsUsageIfAsked] first. If the client didn't ask for the usage, it gets one additional
// event, with an empty list of choices.
func WithUsage(body []byte) ([]byte, bool) {
	b := NewBody()
	if _, err := b.Read(body); err != nil || b.End() != nil || !b.isObject {
		return body, false
	}
	e, ok := b.usageEdit()
	if !ok {
		return body, false
	}
	return slices.Concat(body[:e.from], []byte(e.text), body[e.to:]), true
}

// UsageAtEnd has the same effect as [WithUsage] if it is inserted before the closing bracket of a body. It is for
// bodies that aren't in memory. Blank has the same length and no effect.
const (
	UsageAtEnd = `,"stream_options":{"include_usage":true}`
	Blank      = "                                        "
)

// AtEnd returns UsageAtEnd or Blank, whichever a body needs, after the whole body was read. If neither works, the error
// is a [*Fault].
func (b *Body) AtEnd() (string, error) {
	switch _, edit := b.usageEdit(); {
	case !b.isObject:
		return "", &Fault{"the body must be a JSON object"}
	case !edit:
		return Blank, nil
	case b.options.kind == 0:
		return UsageAtEnd, nil
	}
	return "", &Fault{"stream_options.include_usage must be true, or stream_options be left out"}
}
