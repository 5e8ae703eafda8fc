package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/usage"
)

// unmetered is the answer to a request that can't be metered, by its path and headers.
func unmetered(r *http.Request) *jsonerror.Error {
	media := mediaType(r.Header)
	switch {
	case r.Header["Upgrade"] != nil && strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "WebSockets can't be metered: a limit on tokens or money applies to this path")
	case !hasBody(r):
		return nil
	case usage.IsForJobs(r.URL.Path):
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "Batches and other jobs can't be metered: a limit on tokens or money applies to this path, so send the calls one by one")
	case isEncoded(r.Header):
		return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "A compressed body can't be metered: send it without Content-Encoding")
	case strings.HasPrefix(media, "application/grpc"), strings.HasPrefix(media, "application/connect+"):
		return failure(http.StatusUnsupportedMediaType, jsonerror.UnsupportedMediaType, "Streams of messages can't be metered: a limit on tokens or money applies to this path, which takes JSON")
	}
	return nil
}

func isEncoded(h http.Header) bool {
	for _, e := range h["Content-Encoding"] {
		if e = strings.TrimSpace(e); e != "" && !strings.EqualFold(e, "identity") {
			return true
		}
	}
	return false
}

// mediaType is a body's media type, in lower case, or "".
func mediaType(h http.Header) string {
	t, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return t
}

// read finds out what a body asks for, as far as it has arrived. The fault is the answer to one that can be read in more than one
// way, or in none.
//
// What counts is the body, and not the type that a client gives it: many servers read JSON under any type. A multipart form can't be
// mistaken for JSON.
func (c *call) read(r *http.Request) *jsonerror.Error {
	text := c.head.text
	b := usage.NewBody()
	_, err := b.Read(text)
	if err == nil && c.head.whole() {
		err = b.End()
	}
	c.models = usage.ModelsFromPath(r.URL.Path)
	for _, name := range []string{"model", "deployment"} {
		c.models = append(c.models, r.URL.Query()[name]...)
	}
	media := mediaType(r.Header)
	var fault *usage.Fault
	switch {
	case !errors.As(err, &fault):
		if c.asked = b.Asked(); c.asked.Model != "" {
			c.models = append(c.models, c.asked.Model)
		}
		if rest := r.ContentLength - int64(len(text)); !c.head.whole() && rest > 0 && !b.InFile() { // a file that goes on is most of the rest
			c.asked.Input += rest / 4
		}
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

// unreadable is the answer to a body that can't be metered.
func unreadable(f *usage.Fault) *jsonerror.Error {
	return failure(http.StatusBadRequest, jsonerror.BadRequest, "The call can't be metered: "+f.Message)
}

// long is a body on its way to the upstream that was too long to be read before its request was decided. It is read as it passes, and
// breaks off where it can't be metered, so that the upstream never has such a body whole.
type long struct {
	io.ReadCloser
	most  usage.Amount // output that was reserved by the client's own word
	edits bool         // a streamed chat is to tell its usage
	rest  []byte       // what is to be read before anything else
	err   error        // and what comes behind that

	mu   sync.Mutex
	body *usage.Body // guarded by mu
}

func (l *long) Read(p []byte) (int, error) {
	if n := copy(p, l.rest); n > 0 || len(p) == 0 {
		l.rest = l.rest[n:]
		return n, nil
	}
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.ReadCloser.Read(p)
	closing, end, fault := l.scan(p[:n], err == io.EOF)
	switch {
	case fault != nil:
		l.err = fault
		return 0, fault
	case end == "":
		return n, err
	}
	l.rest, l.err = append([]byte(end), p[closing:n]...), err
	if closing == 0 {
		return l.Read(p)
	}
	return closing, nil
}

// scan reads the next part. End is what is to go in before the bracket at closing, or "".
func (l *long) scan(p []byte, isLast bool) (closing int, end string, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if closing, fault = l.body.Read(p); fault == nil && isLast {
		if fault = l.body.End(); fault == nil && l.edits && l.body.IsEmpty() {
			fault = &usage.Fault{Message: "the body must be a JSON object"}
		}
	}
	if now := l.body.Asked().Output(); fault == nil && l.most.Known && (!now.Known || now.N > l.most.N) {
		fault = &usage.Fault{Message: "a limit such as max_tokens or n that is higher than those before it must be in the first MiB of the body"}
	}
	if fault == nil && closing >= 0 && l.edits {
		end, fault = l.body.AtEnd()
	}
	return closing, end, fault
}

func (l *long) asked() usage.Asked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.body.Asked()
}
