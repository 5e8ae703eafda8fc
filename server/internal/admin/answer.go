package admin

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"github.com/weirhq/weir/internal/jsonerror"
)

// WriteJSON answers with JSON.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // half an answer must not look like one
		jsonerror.New(http.StatusInternalServerError, jsonerror.Internal, "the answer can't be written as JSON: %v", err).Write(w)
		return
	}
	write(w, status, "application/json", b.Bytes())
}

// packs is a client that takes compressed answers.
type packs struct{ http.ResponseWriter }

// Unwrap lets a [http.ResponseController] find the rest.
func (p packs) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// packFrom is how large an answer is that is worth compressing. Ten thousand rules have megabytes, and the console asks again and again.
const packFrom = 16 << 10

// write answers with a body, compressed if it is large and the client takes that. How far an answer shrinks tells those who see its
// length on the wire what it has in common with a text of theirs, if they can have both in one answer, again and again. They can't: a
// page of another origin gets nothing but refusals, and answers with whole keys, the rules and the lists, hold nothing that clients sent.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Add("Vary", "Accept-Encoding")
	if _, ok := w.(packs); ok && len(body) >= packFrom {
		var b bytes.Buffer
		z := packers.Get().(*gzip.Writer)
		defer packers.Put(z)
		z.Reset(&b)
		_, _ = z.Write(body) // into memory
		_ = z.Close()
		body = b.Bytes()
		h.Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}

var packers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// takesGzip: every browser does. Whoever names it with a weight, perhaps 0, gets the answer as it is.
func takesGzip(r *http.Request) bool {
	for _, line := range r.Header["Accept-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				return true
			}
		}
	}
	return false
}
