package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/httplimit"
)

// maxHead is how much of a body is read before its request is decided.
const maxHead = 1 << 20

// head is a body whose beginning was read before its request was decided.
type head struct {
	io.ReadCloser       // the body
	err           error // how reading it ended: io.EOF if that was all, nil if there is more
	room          *room
	client        httplimit.Client // whose share of the room it takes
	held          atomic.Int64     // bytes of the room

	mu   sync.Mutex
	text []byte // guarded by mu
	at   int    // guarded by mu: how much of it was read again
}

// readHead reads the beginning of a request's body into the room, and puts it into the call. It answers the request and returns false
// if there is no room, or if the client stops in the middle. The client has as much time as it has later, when the upstream waits.
func (g *Gateway) readHead(w http.ResponseWriter, r *http.Request, client httplimit.Client, c *call) bool {
	control := http.NewResponseController(w)
	h := &head{ReadCloser: r.Body, room: &g.room, client: client}
	most := maxHead + 1 // with room to see the end
	if r.ContentLength >= 0 && r.ContentLength < maxHead {
		most = int(r.ContentLength) + 1
	}
	p := grace{most: g.stall}
	full := false
	for h.err == nil && len(h.text) < most {
		if full = !h.grow(most); full {
			break
		}
		_ = control.SetReadDeadline(p.begin())
		var n int
		n, h.err = r.Body.Read(h.text[len(h.text):cap(h.text)])
		h.text = h.text[:len(h.text)+n]
		p.end(n)
	}
	var network net.Error
	switch {
	case full:
		h.release()
		_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
		g.opts.Limit.Overloaded(w, r)
		return false
	case g.stall > 0 && errors.As(h.err, &network) && network.Timeout():
		h.release()
		_ = control.EnableFullDuplex() // the server would wait for the rest before it answers
		if r.ProtoMajor == 1 {
			w.Header()["Connection"] = []string{"close"} // nobody knows where the next request would begin
		}
		bodyStalled().Write(w)
		return false
	}
	var by time.Time
	if !h.whole() && r.ProtoMajor == 1 { // should it be refused: see ServeHTTP
		by = time.Now().Add(drainTimeout)
	}
	_ = control.SetReadDeadline(by)
	c.head, r.Body = h, h
	return true
}

// grow makes room for more. A length that a client announces costs nothing: the room grows with what has arrived.
func (h *head) grow(most int) bool {
	if len(h.text) < cap(h.text) {
		return true
	}
	size := min(max(4<<10, 2*cap(h.text)), most)
	more := int64(size - cap(h.text))
	if !h.room.take(&h.client, more) {
		return false
	}
	h.held.Add(more)
	text := make([]byte, len(h.text), size)
	copy(text, h.text)
	h.text = text
	return true
}

// whole reports whether there is no more of the body.
func (h *head) whole() bool { return h.err == io.EOF }

func (h *head) Read(p []byte) (int, error) {
	if n := h.readAgain(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	if h.err != nil {
		return 0, h.err
	}
	return h.ReadCloser.Read(p)
}

func (h *head) readAgain(p []byte) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := copy(p, h.text[h.at:])
	if h.at += n; h.at == len(h.text) && !h.whole() {
		h.releaseLocked()
	}
	return n
}

// take takes the text of a whole body, whatever was read of it.
func (h *head) take() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := h.text
	h.text, h.at = nil, 0
	return text
}

func (h *head) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releaseLocked()
}

func (h *head) releaseLocked() {
	h.text, h.at = nil, 0
	h.room.give(&h.client, h.held.Swap(0))
}

// replay is a whole body that is in memory.
type replay struct {
	*head
	text []byte
}

func (b *replay) Read(p []byte) (int, error) {
	n := copy(p, b.text)
	if b.text = b.text[n:]; len(b.text) > 0 {
		return n, nil
	}
	b.text = nil
	b.release()
	return n, io.EOF
}

// minBodyRate is how many bytes a second a client must send of its body, on average, once its patience is used up.
const minBodyRate = 500

// grace is how long a client may be waited for: each time, and a second more in all for every minBodyRate bytes that it sends.
type grace struct {
	most    time.Duration // 0: endless
	since   time.Time     // when the wait that is under way began
	waited  time.Duration // before that
	arrived int64         // bytes
}

// begin is until when the next part must come; the zero time means that it may take for ever.
func (p *grace) begin() (by time.Time) {
	p.since = time.Now()
	if p.most > 0 {
		by = p.since.Add(p.mayWait())
	}
	return by
}

// mayWait is how long the next part may take.
func (p *grace) mayWait() time.Duration {
	earned := time.Duration(min(p.arrived, 1<<40)/minBodyRate) * time.Second
	return min(p.most, p.most+earned-p.waited)
}

// end notes that so many bytes came.
func (p *grace) end(n int) {
	p.waited += time.Since(p.since)
	p.arrived += int64(n)
}
