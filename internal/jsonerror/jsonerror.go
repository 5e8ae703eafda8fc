// Package jsonerror writes the answers of every port that aren't the ones that were asked for: a status, and a
// JSON body with a code for programs and a message for people.
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

// Error is such an answer. It is also the object under "error" that clients read.
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Details are what programs may want to know beside the code. Nil means none.
	Details any `json:"details,omitempty"`
	// Header is sent beside Content-Type.
	Header http.Header `json:"-"`
}

// New makes an Error. The format and its arguments are the message.
func New(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Bad makes the Error of a request that can't be read: 400, BAD_REQUEST.
func Bad(format string, args ...any) *Error {
	return New(http.StatusBadRequest, BadRequest, format, args...)
}

func (e *Error) Error() string { return e.Message }

// Write answers a request with the error.
func (e *Error) Write(w http.ResponseWriter) {
	h := w.Header()
	maps.Copy(h, e.Header)
	h["Content-Type"] = contentType
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(e.Append(append(make([]byte, 0, 256), '{')), "}\n"...)) // the client may have left
}

var contentType = []string{"application/json"}

// Append appends the member "error" of a JSON object.
func (e *Error) Append(b []byte) []byte {
	b = AppendHead(b, e.Code, e.Message)
	if e.Details != nil {
		b = append(append(b, `,"details":`...), marshal(e.Details)...)
	}
	return append(b, '}')
}

// AppendHead appends the member "error" up to its message. Details may follow, and then a brace.
func AppendHead(b []byte, code, message string) []byte {
	b = AppendString(append(b, `"error":{"code":`...), code)
	return AppendString(append(b, `,"message":`...), message)
}

// AppendString appends a JSON string as encoding/json writes it: <, > and & are escaped, so that no text in an
// answer is markup anywhere. What needs no escaping, as most texts here, costs no allocation.
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
		panic(err) // details are texts, numbers, and lists of those
	}
	return b
}
