package usage

// edit puts text in the place of a part of a body.
type edit struct {
	from, to int64
	text     string
}

// usageEdit is what makes a request ask for its usage; false if there is nothing to do.
func (r *request) usageEdit() (edit, bool) {
	if !r.isChat && !r.isPrompt || !r.asked.Stream {
		return edit{}, false
	}
	o := &r.options
	switch {
	case o.kind == 0:
		return edit{r.body, r.body, `"stream_options":{"include_usage":true},`}, true
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

// WithUsage makes a streamed chat or completion of OpenAI's tell its usage. It returns the body with
// stream_options.include_usage set to true and every other byte as it was, and whether that is a
// change. The body that it is given isn't written to.
//
// A body is a chat if it has messages. Anthropic's have them, too, but its API refuses
// stream_options, so ask [TellsUsageIfAsked] first. A client that didn't ask for its usage gets one
// event more than it may expect, whose list of choices is empty.
func WithUsage(body []byte) ([]byte, bool) {
	b := NewBody()
	if _, err := b.Read(body); err != nil || b.End() != nil || !b.request.isObject {
		return body, false
	}
	e, ok := b.request.usageEdit()
	if !ok {
		return body, false
	}
	out := make([]byte, 0, len(body)+len(e.text))
	out = append(out, body[:e.from]...)
	out = append(out, e.text...)
	return append(out, body[e.to:]...), true
}

// UsageAtEnd is what goes before the bracket that ends a body, to the same effect, where the body isn't in memory. Blank is as
// long, and changes nothing.
const (
	UsageAtEnd = `,"stream_options":{"include_usage":true}`
	Blank      = "                                        "
)

// AtEnd is the one of [UsageAtEnd] and [Blank] that a body that was read whole needs. The error is a [*Fault] if neither will do.
func (b *Body) AtEnd() (string, error) {
	r := &b.request
	switch _, edit := r.usageEdit(); {
	case !r.isObject:
		return "", &Fault{"the body must be a JSON object"}
	case !edit:
		return Blank, nil
	case r.options.kind == 0:
		return UsageAtEnd, nil
	}
	return "", &Fault{"stream_options.include_usage must be true, or stream_options be left out"}
}
