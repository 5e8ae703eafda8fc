// Package jsonerror writes JSON error responses: a status, and a body with a code for programs and
// a message for people.
//
//	{"error":{"code":"BAD_REQUEST","message":"cost: must be from 0 to 9000000000"}}
package jsonerror

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"unicode/utf8"
)

// Error is an error response. As JSON it is the object under "error".
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Details is further information for programs, which is marshaled as JSON. If nil, the response has no details.
	Details any `json:"details,omitempty"`
	// Header holds header fields to send besides Content-Type.
	Header http.Header `json:"-"`
}

// New returns an Error. It formats the message like fmt.Sprintf does.
func New(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Bad returns an Error with status 400 and code BAD_REQUEST.
func Bad(format string, args ...any) *Error {
	return New(http.StatusBadRequest, BadRequest, format, args...)
}

func (e *Error) Error() string { return e.Message }

// Write sends the error as the response.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	maps.Copy(h, e.Header)
	h["Content-Type"] = contentType
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(e.Append(append(make([]byte, 0, 256), '{')), "}\n"...)) // the client may have disconnected
}

var contentType = []string{"application/json"}

// Append appends the member "error" to a JSON object.
func (e *Error) Append(b []byte) []byte {
	b = AppendHead(b, e.Code, e.Message)
	if e.Details != nil {
		b = append(append(b, `,"details":`...), marshal(e.Details)...)
	}
	return append(b, '}')
}

// AppendHead appends the member "error" up to and including its message. The caller may append details, and must close
// the object.
func AppendHead(b []byte, code, message string) []byte {
	b = AppendString(append(b, `"error":{"code":`...), code)
	return AppendString(append(b, `,"message":`...), message)
}

// AppendString appends a JSON string like encoding/json does. It escapes <, > and &, so that browsers never read a text
// as HTML. Strings that need no escaping, which most are, cost no allocation.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return append(b, marshal(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // can't happen: details are strings, numbers, and lists of these
	}
	return b
}
