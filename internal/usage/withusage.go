package usage

import "strings"

// edit puts text in the place of a part of a body.
type edit struct {
	from, to int64
	text     string
}

// usageEdit is what makes a request ask for its usage; false if there is nothing to do.
func (r *request) usageEdit() (edit, bool) {
	if !r.isChat || !r.asked.Stream {
		return edit{}, false
	}
	o := &r.options
	switch {
	case o.kind == 0:
		return edit{r.body, r.body, `"stream_options":{"include_usage":true},`}, true
	case o.kind == 'n':
		return edit{o.from, o.to, `{"include_usage":true}`}, true
	case o.kind != '{':
		return edit{}, false // nonsense, for the server to refuse
	}
	switch {
	case o.empty:
		return edit{o.body, o.body, `"include_usage":true`}, true
	case o.include.kind == 0:
		return edit{o.body, o.body, `"include_usage":true,`}, true
	case o.include.kind == 'f', o.include.kind == 'n':
		return edit{o.include.from, o.include.to, "true"}, true
	}
	return edit{}, false
}

// WithUsage makes a streamed chat of OpenAI's tell its usage. It returns the body with
// stream_options.include_usage set to true and every other byte as it was, and whether that is a
// change. The body that it is given isn't written to.
//
// A body is a chat if it has messages. Anthropic's have them, too, but its API refuses
// stream_options, so ask [IsChatPath] first. A client that didn't ask for its usage gets one event
// more than it may expect, whose list of choices is empty.
func WithUsage(body []byte) ([]byte, bool) {
	r, ok := readRequest(body)
	if !ok {
		return body, false
	}
	e, ok := r.usageEdit()
	if !ok {
		return body, false
	}
	out := make([]byte, 0, len(body)+len(e.text))
	out = append(out, body[:e.from]...)
	out = append(out, e.text...)
	return append(out, body[e.to:]...), true
}

// IsChatPath reports whether a path is that of chats in OpenAI's API, wherever a server has it.
func IsChatPath(path string) bool {
	return strings.HasSuffix(strings.TrimRight(path, "/"), "/chat/completions")
}
