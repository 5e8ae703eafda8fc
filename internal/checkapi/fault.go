package checkapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// fault is an answer that is no decision.
type fault struct {
	status     int
	err        Error
	retryAfter int // seconds; 0 for none
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
	if f.retryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(f.retryAfter)}
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(append(marshal(ErrorResponse{f.err}), '\n')) // the client may have left
}

// marshal is for what is rare. It escapes <, > and &, so that no text in an answer is markup anywhere.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings alone
	}
	return b
}
