package forwardauth

import (
	"bytes"
	"net/http"
	"strconv"
)

// reply holds an answer back until it is whole. The request that was limited isn't the one that is answered: a refused HEAD has
// no body, and the gateway that asks about it with a GET waits for one.
type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*reply)(nil)

func (a *reply) Header() http.Header         { return a.header }
func (a *reply) WriteHeader(status int)      { a.status = status }
func (a *reply) Write(b []byte) (int, error) { return a.body.Write(b) }

// maxMasked is the longest body that is sent in a header: nginx reads the head of an answer into 4 KiB.
const maxMasked = 2 << 10

// send sends it, in the form that a gateway understands.
func (a *reply) send(w http.ResponseWriter, g *gateway) {
	body := a.body.Bytes()
	if g.marks {
		a.header["X-Weir-Status"] = []string{strconv.Itoa(a.status)}
	}
	if g.masks && a.status != http.StatusOK {
		if line := bytes.TrimSpace(body); len(line) <= maxMasked && !bytes.ContainsFunc(line, isControl) {
			a.header["X-Weir-Body"] = []string{string(line)}
		}
		a.status = http.StatusForbidden
	}
	a.header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // the gateway may have left
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }
