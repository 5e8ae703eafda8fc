package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/inuse"
)

// maxHead is how many bytes of a body are read before its request is decided.
const maxHead = 1 << 20

// head is a body whose beginning has been read before its request is decided.
type head struct {
	io.ReadCloser       // the rest of the body
	err           error // why reading has ended: io.EOF at the end of the body, nil if there is more to read
	room          *room
	client        httplimit.Client // the client for which bytes are reserved in room
	held          atomic.Int64     // how many bytes are reserved in room

	mu        sync.Mutex // guards the fields below
	text      []byte
	at        int  // how much of text the upstream's request has read
	forwarded bool // the body is being forwarded
}

// readHead reads the beginning of a request's body for the call, into memory that it reserves in the gateway's room. If
// no memory is left, or if the client stalls, it sends an error and returns false.
func (g *Gateway) readHead(w http.ResponseWriter, r *http.Request, client httplimit.Client, c *modelCall) bool {
	control := http.NewResponseController(w)
	h := &head{ReadCloser: r.Body, room: &g.room, client: client}
	most := maxHead + 1 // one more byte, to detect the end of the body
	if r.ContentLength >= 0 && r.ContentLength < maxHead {
		most = int(r.ContentLength) + 1
	}
	p := grace{most: g.stall, rate: minBodyRate}
	full := false
	for h.err == nil && len(h.text) < most {
		if full = !h.grow(most); full {
			break
		}
		if cap(h.text) > smallHead && p.rate == minBodyRate {
			p = grace{most: min(g.stall, headStall), rate: minHeadRate}
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
	case errors.As(h.err, &network) && network.Timeout():
		h.release()
		_ = control.EnableFullDuplex() // otherwise the server would read the rest before it responds
		if r.ProtoMajor == 1 {
			w.Header()["Connection"] = []string{"close"} // otherwise the server couldn't tell where the next request begins
		}
		bodyStalled().Write(w)
		return false
	}
	var by time.Time
	if !h.whole() && r.ProtoMajor == 1 { // in case the request is refused: see ServeHTTP
		by = time.Now().Add(drainTimeout)
	}
	_ = control.SetReadDeadline(by)
	c.head, r.Body = h, h
	return true
}

// grow enlarges the buffer if it is full. The buffer grows with the bytes that arrive, so a large Content-Length alone
// doesn't cost memory.
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

func (h *head) whole() bool { return h.err == io.EOF }

func (h *head) Read(p []byte) (int, error) {
	n, more := h.readAgain(p)
	switch {
	case more || len(p) == 0 || n > 0 && !h.whole():
		return n, nil
	case h.err != nil:
		return n, h.err
	}
	return h.ReadCloser.Read(p)
}

// readAgain reads from text, and reports whether text has more. If text is the whole body, its memory is kept until the
// body is forwarded.
func (h *head) readAgain(p []byte) (n int, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n = copy(p, h.text[h.at:])
	h.at += n
	more = h.at < len(h.text)
	if !more && (h.forwarded || !h.whole()) {
		h.releaseLocked()
	}
	return n, more
}

// forward makes the body, which was read as a whole, readable from its beginning, with a new text.
func (h *head) forward(text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text, h.at, h.forwarded = text, 0, true
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

const (
	// minBodyRate is how many bytes per second a client must send after its patience is used up.
	minBodyRate = 500
	// If a body uses more than smallHead bytes of memory, the gateway waits less for its client: for at most headStall,
	// and at least at minHeadRate.
	smallHead   = 64 << 10
	headStall   = 5 * time.Second
	minHeadRate = 16 << 10
)

// grace says how long the gateway waits for a client. It waits for at most `most` for each part. In total, the parts
// may take at most `most` longer than they would at the given rate. If a client is faster for a while, it gains no time
// that way. Otherwise a fast beginning would buy time to stall.
type grace struct {
	most  time.Duration
	rate  int           // bytes per second
	since time.Time     // when the wait in progress began
	late  time.Duration // how much longer the bytes have taken than at the rate
}

// begin begins to wait for a part, and returns the time by which it must arrive.
func (p *grace) begin() (by time.Time) {
	p.since = time.Now()
	return p.since.Add(p.most - p.late)
}

// end records the arrival of n bytes.
func (p *grace) end(n int) {
	p.late = max(0, p.late+time.Since(p.since)-time.Duration(n)*time.Second/time.Duration(p.rate))
}

const maxRoom = 64 << 20 // bytes

// room reserves memory for bodies that are read before their requests are decided. The zero value has nothing reserved.
//
// Clients of one address may use up to a quarter of the memory that is free then, which is a fifth of the memory if
// nobody else uses any. So each address leaves most of the rest to other addresses. A client without a verified key may
// use half as much as its address. A verified client may use as much as an address, and its use doesn't count for its
// address. So strangers at the same address can't use up the memory that it needs.
type room struct {
	mu        sync.Mutex
	addresses inuse.Count[netip.Prefix] // bytes used by clients without a verified key, by address; guarded by mu
	clients   inuse.Count[string]       // bytes by client ID, including those without one, and in total; guarded by mu
}

// take reserves n bytes for a client. It reports whether there were enough.
func (r *room) take(c *httplimit.Client, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	share := (maxRoom - r.clients.All() - n) / 4
	if !c.Verified {
		if r.addresses.Of(c.Address)+n > share {
			return false
		}
		share /= 2
	}
	if c.ID != "" && r.clients.Of(c.ID)+n > share {
		return false
	}
	r.add(c, n)
	return true
}

func (r *room) give(c *httplimit.Client, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(c, -n)
}

func (r *room) add(c *httplimit.Client, n int64) {
	r.clients.Add(c.ID, n)
	if !c.Verified {
		r.addresses.Add(c.Address, n)
	}
}
