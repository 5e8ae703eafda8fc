package gateway

import (
	"context"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/usage"
)

// Requests to AI models cost what nobody knows before the answer. Where a rule may count amounts, the gateway reads what a
// request asks for, has that much reserved, and settles for what the answer says was used. A request of which nothing was
// reserved goes on as it came.

// reserveFor is how long an estimate stands if this node dies before the answer is complete.
const reserveFor = 10 * time.Minute

// call is a request that may be one to a model.
type call struct {
	asked    usage.Asked
	amounts  map[string]weir.Amount // estimated
	guess    bool                   // by earlier answers
	head     *head                  // nil if the body wasn't read
	sent     int64                  // bytes of a body that wasn't read whole, as far as they are known
	reserved bool                   // the limiter waits for what it took
}

type callKey struct{}

// callOf is the call that a request is, or nil.
func callOf(r *http.Request) *call {
	c, _ := r.Context().Value(callKey{}).(*call)
	return c
}

// estimate returns the request with the amounts that it is likely to take, or answers it: if it is refused whatever its body says, if
// there is no room for the body, or if the body stops arriving.
func (g *Gateway) estimate(w http.ResponseWriter, r *http.Request) (_ *http.Request, answered bool) {
	if r.Method != http.MethodPost || !hasBody(r) || !g.opts.Limit.CountsAmounts(r) {
		return r, false
	}
	c := &call{}
	if mayBeJSON(r.Header) { // else, what it takes is known from the answer alone
		client, refused := g.opts.Limit.RefuseAhead(w, r)
		if refused || !g.readHead(w, r, client, c) {
			return r, true
		}
		c.asked = usage.ReadStart(c.head.text)
	}
	if c.head == nil || !c.head.whole() {
		c.sent = max(0, r.ContentLength)
	}
	if model := usage.ModelFromPath(r.URL.Path); model != "" { // the upstream takes that one, whatever the body says
		c.asked.Model = model
	}
	c.amounts = g.reserves(c)
	r = httplimit.WithEstimate(r, &httplimit.Estimate{Model: c.asked.Model, Reserve: reserveFor, Amounts: c.amounts, Guess: c.guess})
	return r.WithContext(context.WithValue(r.Context(), callKey{}, c)), false
}

// reserves is what a call is likely to take. What isn't known is for the rules' defaults.
func (g *Gateway) reserves(c *call) map[string]weir.Amount {
	if c.asked == (usage.Asked{Choices: 1}) || c.head == nil { // nothing was read, or nothing of use
		return nil
	}
	amounts := map[string]weir.Amount{"input": weir.Whole(c.asked.Input)}
	output := c.asked.Output()
	if !output.Known {
		output.N, output.Known = g.opts.Learned.estimate(c.asked.Model)
		c.guess = output.Known
	}
	if output.Known {
		amounts["output"], amounts["tokens"] = weir.Whole(output.N), weir.Whole(c.asked.Input+output.N)
	}
	return amounts
}

// mayBeJSON reports whether a body may be the JSON of a call. Servers that don't look at the type take it as text, too.
func mayBeJSON(h http.Header) bool {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return false
	}
	switch t, _, _ := mime.ParseMediaType(h.Get("Content-Type")); t {
	case "", "application/json", "text/json", "text/plain":
		return true
	case "application/connect+json": // a stream of messages, which may wait for answers
		return false
	default:
		return strings.HasSuffix(t, "+json")
	}
}

// release ends the use of what was read ahead of a request's body.
func (c *call) release() {
	if c != nil && c.head != nil {
		c.head.release()
	}
}

// admitted is called when a call goes on to the upstream. A streamed chat for which something was reserved is made to tell its
// usage.
func (c *call) admitted(r *http.Request) {
	if c == nil {
		return
	}
	c.reserved = httplimit.Reserved(r)
	if c.head != nil {
		delete(r.Header, "Expect") // the client was told to continue when its body was read
	}
	if c.head == nil || !c.head.whole() {
		return
	}
	text := c.head.take()
	if c.reserved && c.asked.Stream && usage.IsChatPath(r.URL.Path) && !isSealed(r.Header) {
		if more, changed := usage.WithUsage(text); changed {
			text = more
			if r.ContentLength >= 0 {
				r.ContentLength = int64(len(text))
				r.Header.Set("Content-Length", strconv.Itoa(len(text)))
			}
		}
	}
	r.Body = &replay{head: c.head, text: text}
}

// isSealed reports whether headers vouch for the body, so that it can't be changed.
func isSealed(h http.Header) bool {
	sealing := []string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest", "Signature-Input", "X-Amz-Content-Sha256"}
	return slices.ContainsFunc(sealing, func(name string) bool { return h[name] != nil })
}

// watchUsage has an answer settle its request.
func (g *Gateway) watchUsage(res *http.Response) {
	c := callOf(res.Request)
	if c == nil || !c.reserved {
		return
	}
	if name := g.opts.UsageHeader; name != "" {
		if amounts := readAmounts(res.Header.Get(name)); amounts != nil {
			httplimit.Settle(res.Request, amounts)
			return
		}
	}
	if res.StatusCode >= 400 && res.StatusCode < 500 { // the model wasn't asked
		nothing := map[string]weir.Amount{"input": 0, "cached": 0, "output": 0, "tokens": 0}
		for _, name := range g.opts.Limit.Amounts() {
			nothing[name] = 0
		}
		httplimit.Settle(res.Request, nothing)
		return
	}
	if res.StatusCode != http.StatusOK {
		return
	}
	m := &metered{ReadCloser: res.Body, g: g, c: c, r: res.Request}
	if e := res.Header.Get("Content-Encoding"); e == "" || strings.EqualFold(e, "identity") {
		m.reader = usage.NewReader(res.Header.Get("Content-Type"))
	} else if !usage.IsStream(res.Header.Get("Content-Type")) {
		return // what was reserved stands
	}
	res.Body = m
}

// metered is an answer's body that is read for what it says was used.
type metered struct {
	io.ReadCloser
	reader *usage.Reader // nil of a stream that is packed
	packed int64         // the bytes of that
	g      *Gateway
	c      *call
	r      *http.Request
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if m.reader == nil {
		m.packed += int64(n)
	} else {
		_, _ = m.reader.Write(p[:n]) // it never fails
	}
	return n, err
}

func (m *metered) Close() error {
	var u usage.Usage
	told, streamed := false, m.packed // of a packed byte, at most a token
	if m.reader != nil {
		u, told = m.reader.Usage()
		streamed = m.reader.Streamed()
	}
	switch {
	case told && !u.Partial:
		httplimit.Settle(m.r, amountsOf(&u))
		if u.Output.Known {
			m.g.opts.Learned.learn(m.c.asked.Model, u.Output.N)
		}
	case told || streamed > 0:
		httplimit.SettleAtLeast(m.r, m.c.likely(&u, streamed))
	}
	return m.ReadCloser.Close()
}

// amountsOf is what an answer says was used.
func amountsOf(u *usage.Usage) map[string]weir.Amount {
	out := map[string]weir.Amount{}
	for name, a := range map[string]usage.Amount{"input": u.Input, "cached": u.Cached, "output": u.Output, "tokens": u.Tokens} {
		if a.Known {
			out[name] = weir.Whole(a.N)
		}
	}
	return out
}

// likely is what a call has taken whose answer broke off, or doesn't say it: what it had told so far, what was estimated, or what
// was streamed, whatever is more. A client that has its answers say nothing would be served for nothing otherwise.
func (c *call) likely(u *usage.Usage, streamed int64) map[string]weir.Amount {
	out := amountsOf(u)
	for name, estimated := range c.amounts {
		out[name] = max(out[name], estimated)
	}
	out["input"] = max(out["input"], weir.Whole(c.sent/4)-out["cached"])
	out["output"] = max(out["output"], weir.Whole(streamed))
	out["tokens"] = max(out["tokens"], out["input"]+out["cached"]+out["output"])
	return out
}

// readAmounts reads a header such as "812", which is tokens, or "tokens=812, usd=0.012". Nil means that it isn't one.
func readAmounts(header string) map[string]weir.Amount {
	if header == "" || len(header) > 1024 {
		return nil
	}
	out := map[string]weir.Amount{}
	for part := range strings.SplitSeq(header, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			name, value = "tokens", name
		}
		a, err := weir.ParseAmount(strings.TrimSpace(value))
		if err != nil {
			return nil
		}
		out[strings.TrimSpace(name)] = a
	}
	return out
}
