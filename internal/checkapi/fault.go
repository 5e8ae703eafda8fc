package checkapi

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// fault is an answer that is no decision.
type fault struct {
	status     int
	err        Error
	retryAfter []string // the header; nil for none
	body       []byte   // what is sent, if it was written beforehand
}

var inASecond = []string{"1"}

// overloaded is sent when there is no time to write anything.
var overloaded = func() *fault {
	f := &fault{status: http.StatusServiceUnavailable, retryAfter: inASecond, err: Error{CodeOverloaded,
		"this node is overloaded: try again shortly, or ask another"}}
	f.body = f.render()
	return f
}()

func (f *fault) render() []byte {
	if f.body != nil {
		return f.body
	}
	return append(marshal(ErrorResponse{f.err}), '\n')
}

func (f *fault) Error() string { return f.err.Message }
func (f *fault) Unwrap() error { return &f.err }

func badRequest(format string, args ...any) error {
	return &fault{status: http.StatusBadRequest, err: Error{CodeBadRequest, fmt.Sprintf(format, args...)}}
}

// write sends the fault as it is, and closes the connection where the rest of a body may still be under way.
func (f *fault) write(w http.ResponseWriter) {
	h := w.Header()
	h["Content-Type"] = jsonType
	switch f.status {
	case http.StatusMethodNotAllowed:
		h["Allow"] = []string{http.MethodPost}
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		h["Connection"] = []string{"close"}
	}
	if f.retryAfter != nil {
		h["Retry-After"] = f.retryAfter
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(f.render()) // the client may have left
}

// marshal is for what is rare. It escapes <, > and &, so that no text in an answer is markup anywhere.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings alone
	}
	return b
}
