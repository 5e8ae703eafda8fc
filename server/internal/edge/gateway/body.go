package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// unmetered returns an error if a request can't be metered because of its path or its headers.
func unmetered(r *http.Request) *jsonerror.Error {
	media := mediaType(r.Header)
	switch {
	case r.Header["Upgrade"] != nil && strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "WebSockets can't be metered: a limit on tokens or money applies to this path")
	case !hasBody(r):
		return nil
	case usage.IsForJobs(r.URL.Path):
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "Batches, realtime sessions and other jobs can't be metered: a limit on tokens or money applies to this path, so send the calls one by one")
	case masksAnswer(r):
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "Answers without their usage can't be metered: leave out fields, alt, callback and X-Goog-FieldMask")
	case isEncoded(r.Header):
		return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "A compressed body can't be metered: send it without Content-Encoding")
	case strings.HasPrefix(media, "application/grpc"), strings.HasPrefix(media, "application/connect+"):
		return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "Streams of messages can't be metered: a limit on tokens or money applies to this path, which takes JSON")
	}
	return nil
}

// masksAnswer reports whether the request has a parameter of Google's APIs that removes the usage from the response, or
// changes the response's format.
func masksAnswer(r *http.Request) bool {
	if len(usage.ModelsFromPath(r.URL.Path)) == 0 {
		return false
	}
	if _, masks := r.Header["X-Goog-Fieldmask"]; masks {
		return true
	}
	for name, values := range r.URL.Query() {
		switch strings.ToLower(strings.TrimPrefix(name, "$")) {
		case "fields", "callback":
			return true
		case "alt":
			if slices.ContainsFunc(values, func(v string) bool { return v != "json" && v != "sse" }) {
				return true
			}
		}
	}
	return false
}

func isEncoded(h http.Header) bool {
	return slices.ContainsFunc(h["Content-Encoding"], func(e string) bool {
		e = strings.TrimSpace(e)
		return e != "" && !strings.EqualFold(e, "identity")
	})
}

// isUTF8 reports whether a server that decodes a body by the charset in its Content-Type reads the same JSON as a
// server that decodes UTF-8. For example, +AG0-odel means model in UTF-7.
func isUTF8(h http.Header) bool {
	for _, t := range h["Content-Type"] {
		_, params, _ := mime.ParseMediaType(t)
		switch strings.ToLower(params["charset"]) {
		case "utf-8", "utf8", "us-ascii", "iso-8859-1":
		case "":
			if strings.Contains(strings.ToLower(t), "charset") { // the charset is given twice, or misspelled
				return false
			}
		default:
			return false
		}
	}
	return true
}

func mediaType(h http.Header) string {
	t, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return t
}

// read finds out what the call asks for, from the part of the body that has arrived. It returns an error if servers
// could read the body in different ways. It doesn't rely on the declared type, because many servers read JSON whatever
// the type is. A multipart form can't be mistaken for JSON.
func (c *modelCall) read(r *http.Request) *jsonerror.Error {
	text := c.head.text
	b := usage.NewBody()
	_, err := b.Read(text)
	if err == nil && c.head.whole() {
		err = b.End()
	}
	var fault *usage.Fault
	readable := !errors.As(err, &fault)
	if readable {
		c.asked = b.Asked()
	}
	c.nameModels(r, readable && c.head.whole())
	media := mediaType(r.Header)
	switch {
	case readable && len(text) > 0 && !isUTF8(r.Header):
		return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "A call in another charset can't be metered: send it in UTF-8")
	case readable:
		c.isCall = b.IsCall()
		c.others = len(b.Others())
		c.models = append(c.models, b.Others()...)
		if !b.IsLimited(r.URL.Path) {
			c.foreign, c.asked.MaxOutput = c.asked.MaxOutput.N, usage.Amount{}
		}
		if rest := r.ContentLength - int64(len(text)); !c.head.whole() && rest > 0 && !b.InFile() { // if a file continues, most of the rest is that file
			c.asked.Input += rest / 4
		}
		c.unsized = !c.head.whole() && r.ContentLength < 0 && !b.InFile()
		return nil
	case strings.HasPrefix(media, "multipart/") && bytes.HasPrefix(bytes.TrimLeft(text, "\r\n"), []byte("--")):
		c.kind, c.asked = isForm, usage.Asked{Choices: 1}
		return nil
	case usage.IsForFiles(r.URL.Path):
		c.kind, c.asked = isFile, usage.Asked{Choices: 1}
		return nil
	case media == "" || media == "text/plain" || strings.HasSuffix(media, "json"):
		return unreadable(fault)
	}
	return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "A limit on tokens or money applies to this path, and only JSON can be metered: "+fault.Message)
}

// nameModels collects the models that a call may be for, and chooses the one that rules count by: the model in the path
// or else in the body. Models in the query, and in parts of the path that .. removes, don't count, because most
// upstreams ignore them, and a client could name a different model there in each call. complete reports that the rest
// of the body can't name a model.
func (c *modelCall) nameModels(r *http.Request, complete bool) {
	c.models = usage.ModelsFromPath(path.Clean(r.URL.Path))
	if c.asked.Model != "" {
		c.models = append(c.models, c.asked.Model)
	}
	known := complete || len(c.models) > 0
	for _, name := range []string{"model", "deployment"} {
		c.models = append(c.models, r.URL.Query()[name]...)
	}
	c.models = append(c.models, usage.ModelsFromPath(r.URL.Path)...)
	if known && len(c.models) > 0 {
		c.model = c.models[0]
	}
}

func unreadable(f *usage.Fault) *jsonerror.Error {
	return failure(http.StatusBadRequest, jsonerror.BadRequest, "The call can't be metered: "+f.Message)
}

// long is a body that is too long to be read before its request is decided. The gateway meters the body while it
// forwards it. If the body can't be metered, reading it fails. Until the whole body has been read, the gateway holds
// back the last byte that has arrived and, if the bracket that closes the document has arrived, everything from that
// bracket on. Otherwise the upstream might have the complete call before the gateway finds that it can't be metered.
type long struct {
	io.ReadCloser
	most  int64  // number of output tokens that are reserved
	other int    // number of models that may answer instead of the requested one; amounts for them are reserved, too
	input int64  // number of input tokens that are reserved if the length of the rest was unknown; otherwise 0
	edits bool   // change a streamed chat, so that the response reports the usage
	buf   []byte // bytes that were read but not forwarded: rest, followed by held
	rest  []byte // the bytes to forward next
	held  []byte // the bytes that are held back
	ended bool   // held begins with the bracket that closes the document
	err   error  // why reading has ended

	mu   sync.Mutex
	body *usage.Body // guarded by mu
}

const maxHeld = 4 << 10 // maximum number of bytes that are held back: the bracket and white space

func (l *long) Read(p []byte) (int, error) {
	for len(p) > 0 && len(l.rest) == 0 && l.err == nil {
		l.fill()
	}
	n := copy(p, l.rest)
	if l.rest = l.rest[n:]; n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, l.err
}

// fill reads the next part of the body, and determines how much of it may be forwarded.
func (l *long) fill() {
	if l.buf == nil {
		l.buf = make([]byte, 32<<10)
	}
	held := copy(l.buf, l.held)
	n, err := l.ReadCloser.Read(l.buf[held:])
	all := l.buf[:held+n]
	closing, end, fault := l.scan(all[held:], err == io.EOF)
	from := len(all) // everything from this offset on is held back
	switch {
	case l.ended:
		from = 0
	case closing >= 0:
		from, l.ended = held+closing, true
	case from > 0:
		from--
	}
	switch {
	case fault != nil:
		l.err = fault
	case len(all)-from > maxHeld:
		l.err = &usage.Fault{Message: "more than 4,095 bytes of whitespace follow the JSON document"}
	case err == io.EOF:
		l.rest, l.err = slices.Insert(all, from, []byte(end)...), err
	case err != nil:
		l.err = err
	default:
		l.rest, l.held = all[:from], all[from:]
	}
}

// scan meters the next part of the body. closing is the offset in p of the bracket that closes the document, or -1. end
// is the text to insert before the bracket.
func (l *long) scan(p []byte, isLast bool) (closing int, end string, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if closing, fault = l.body.Read(p); fault == nil && isLast {
		fault = l.body.End()
	}
	switch asked := l.body.Asked(); {
	case fault != nil:
	case mostOutput(asked) > l.most:
		fault = &usage.Fault{Message: fmt.Sprintf("limits such as max_tokens and n that allow more than %d tokens of output must be in the first MiB of the body", l.most)}
	case l.input > 0 && asked.Input > l.input:
		fault = &usage.Fault{Message: "text behind the first MiB of a body without Content-Length: send it with one"}
	case len(l.body.Others()) > l.other:
		fault = &usage.Fault{Message: "other models that may answer, in models or fallbacks, must be in the first MiB of the body"}
	case isLast && l.edits:
		end, fault = l.body.AtEnd()
	}
	return closing, end, fault
}

func (l *long) asked() usage.Asked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.body.Asked()
}
