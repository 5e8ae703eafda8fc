package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// A call to an AI model costs an amount that is known only when its answer is complete. Where a rule may count amounts, the
// gateway reads what a request asks for, has that much reserved, and settles for what the answer says was used. What can't be
// metered is refused.

const (
	// reserveFor is how long an estimate stands if this node dies before the answer is complete.
	reserveFor = 10 * time.Minute
	// assumedOutput is how many tokens a choice is assumed to have at most while nothing else is known.
	assumedOutput = 4096
	// lateOutput is how many tokens the limits in a long body may allow in all if its first MiB has none. Clients that write their
	// messages first and max_tokens last have it behind their pictures.
	lateOutput = 32768
	// unknownModel is the name under which rules by model count a call whose model can't be read, or comes after the first MiB. If
	// such a call had no model at all, a rule with missing: skip would let it pass.
	unknownModel = "unknown"
)

// call is a request that may be one to a model.
type call struct {
	kind     kind
	asked    usage.Asked
	foreign  int64                  // the limit of a choice's output that another API would obey, and perhaps this one
	isCall   bool                   // the body may be one to a model
	models   []string               // that the path, the query and the body name
	others   int                    // how many of them may answer in place of the one that was asked for
	amounts  map[string]weir.Amount // estimated
	assumed  map[string]weir.Amount // the same with an assumed output, if the output isn't known
	most     int64                  // tokens of output that are reserved; 0 if that isn't known
	guess    bool                   // the output is estimated by earlier answers, or assumed
	fault    *jsonerror.Error       // the answer, if it can't be metered and a limit applies to it
	head     *head                  // nil if the body wasn't read
	long     *long                  // of a body that head doesn't have whole, once the call is admitted
	edited   bool                   // the upstream gets another body than the client sent
	reserved bool                   // the limiter waits for what it took
}

// kind is what a body is.
type kind uint8

const (
	isJSON kind = iota
	isForm      // multipart, as sound and pictures are sent
	isFile      // sent to be stored
)

type callKey struct{}

// callOf is the call that a request is, or nil.
func callOf(r *http.Request) *call {
	c, _ := r.Context().Value(callKey{}).(*call)
	return c
}

// estimate returns the request with the amounts that it is likely to take, or answers it: if it is refused whatever its body says, if
// there is no room for the body, or if the body stops arriving.
func (g *Gateway) estimate(w http.ResponseWriter, r *http.Request) (_ *http.Request, answered bool) {
	if !hasBody(r) && r.Header["Upgrade"] == nil || !g.opts.Limit.CountsAmounts(r) {
		return r, false
	}
	c := &call{fault: unmetered(r)}
	if c.fault == nil {
		if !hasBody(r) {
			return r, false
		}
		client, refused := g.opts.Limit.RefuseAhead(w, r)
		if refused || !g.readHead(w, r, client, c) {
			return r, true
		}
		if c.fault = c.read(r); c.fault == nil {
			g.reserve(c)
		}
	}
	model := c.model()
	if model == "" && (c.fault != nil || c.kind == isForm || !c.head.whole()) {
		model = unknownModel
	}
	r = httplimit.WithEstimate(r, &httplimit.Estimate{Model: model, Reserve: reserveFor, Amounts: c.amounts, Assumed: c.assumed, Choices: c.asked.Choices, Guess: c.guess})
	return r.WithContext(context.WithValue(r.Context(), callKey{}, c)), false
}

// model is the one that learned lengths and rules by model count by: that of the path, which upstreams go by, or else that of the body.
func (c *call) model() string {
	if len(c.models) > 0 {
		return c.models[0]
	}
	return ""
}

// reserve estimates what a call is likely to take.
func (g *Gateway) reserve(c *call) {
	if c.kind == isFile || c.kind == isJSON && c.head.whole() && len(c.models) == 0 && !c.isCall {
		return // no call to a model that is known of: the rules' defaults are for that
	}
	input, output := c.asked.Input, c.asked.Output()
	assumed := c.asked.OutputOf(max(assumedOutput, c.foreign)).N
	if !output.Known {
		c.guess = true
		if each, known := g.opts.Learned.estimate(c.model()); known {
			output = c.asked.OutputOf(max(each, c.foreign))
		}
		if c.kind == isJSON && !c.head.whole() {
			output.N, output.Known = max(output.N, assumed, lateOutput), true
		}
	}
	c.most = output.N
	all := func(output int64) map[string]weir.Amount {
		return g.price(c.models, "", map[string]weir.Amount{
			"input": weir.Whole(input), "output": weir.Whole(output), "tokens": weir.Whole(input + output),
		})
	}
	if output.Known {
		c.amounts = all(output.N)
		return
	}
	c.amounts = g.price(c.models, "", map[string]weir.Amount{"input": weir.Whole(input)})
	c.assumed = all(assumed)
}

// mostOutput is how many tokens an answer is assumed to have at most.
func mostOutput(a usage.Asked) int64 {
	if output := a.Output(); output.Known {
		return output.N
	}
	return a.OutputOf(assumedOutput).N
}

// price adds what amounts cost to them, unless that is known.
func (g *Gateway) price(asked []string, answered string, of map[string]weir.Amount) map[string]weir.Amount {
	if _, known := of["usd"]; !known {
		if usd, known := g.opts.Limit.Price(asked, answered, of); known {
			of["usd"] = usd
		}
	}
	return of
}

// release ends the use of what was read ahead of a request's body.
func (c *call) release() {
	if c != nil && c.head != nil {
		c.head.release()
	}
}

// admitted is called when a call goes on to the upstream. A streamed chat for which something was reserved is made to tell its
// usage. The fault is the answer to a call that has a limit and can't be metered.
func (c *call) admitted(r *http.Request) (fault *jsonerror.Error) {
	if c == nil {
		return nil
	}
	if c.reserved = httplimit.Reserved(r); c.reserved && c.fault != nil {
		return c.fault
	}
	if c.head == nil {
		return nil
	}
	delete(r.Header, "Expect") // the client was told to continue when its body was read
	meters := c.reserved && c.kind == isJSON
	edits := meters && usage.TellsUsageIfAsked(r.URL.Path)
	switch {
	case c.head.whole():
		text := c.head.take()
		before := len(text)
		if edits && c.asked.NoUsage {
			text, c.edited = usage.WithUsage(text)
		}
		r.Body = &replay{head: c.head, text: text}
		lengthen(r, len(text)-before)
	case meters:
		c.long = &long{ReadCloser: r.Body, body: usage.NewBody(), most: c.most, other: c.others, edits: edits}
		r.Body, c.edited = c.long, edits
		if edits {
			lengthen(r, len(usage.Blank))
		}
	}
	if c.edited {
		dropSeals(r.Header)
	}
	return nil
}

// lengthen corrects the length of a request whose body has n bytes more.
func lengthen(r *http.Request, n int) {
	if n != 0 && r.ContentLength >= 0 {
		r.ContentLength += int64(n)
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
}

// dropSeals drops the headers that vouch for a body which isn't the client's any more. They don't keep a body from being
// changed: a client would decide by them what is metered.
func dropSeals(h http.Header) {
	for _, name := range []string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		delete(h, name)
	}
}

// all is what was asked for, in a body that may have gone on after its request was decided.
func (c *call) all() (asked usage.Asked, models []string) {
	if c.long == nil {
		return c.asked, c.models
	}
	asked = c.long.asked()
	return asked, append(slices.Clone(c.models), asked.Model)
}

// watchUsage has an answer settle its request.
func (g *Gateway) watchUsage(res *http.Response) {
	c := callOf(res.Request)
	if c == nil || !c.reserved {
		return
	}
	if name := g.opts.UsageHeader; name != "" {
		if amounts := readAmounts(res.Header.Get(name)); amounts != nil {
			_, models := c.all()
			httplimit.Settle(res.Request, g.price(models, "", amounts))
			return
		}
	}
	switch s := res.StatusCode; {
	case s >= 400 && s < 500: // the model wasn't asked
		g.settleNothing(res.Request)
		return
	case s < 200 || s > 299 || s == http.StatusAccepted: // nothing is known, or not yet: what was reserved stands
		return
	}
	m := &metered{ReadCloser: res.Body, g: g, c: c, r: res.Request}
	contentType := res.Header.Get("Content-Type")
	if e := res.Header.Get("Content-Encoding"); (e == "" || strings.EqualFold(e, "identity")) && !usage.IsPacked(contentType) {
		m.reader = usage.NewReader(contentType)
	} else if !usage.IsStream(contentType) && !usage.IsPacked(contentType) {
		return // what was reserved stands
	}
	res.Body = m
}

// settleNothing gives everything back that a request has reserved.
func (g *Gateway) settleNothing(r *http.Request) {
	nothing := map[string]weir.Amount{"input": 0, "cached": 0, "output": 0, "tokens": 0, "usd": 0}
	for _, name := range g.opts.Limit.Amounts() {
		nothing[name] = 0
	}
	httplimit.Settle(r, nothing)
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
	asked, models := m.c.all()
	switch {
	case told && !u.Partial && (u.Output.Known || u.Tokens.Known):
		httplimit.Settle(m.r, m.g.price(models, u.Model, booked(&u, asked)))
		// An answer that a limit cut says nothing of others. Nor does one of several choices: the server may have ignored n.
		if u.Output.Known && !asked.MaxOutput.Known && m.c.foreign == 0 && asked.Choices <= 1 {
			m.g.opts.Learned.learn(m.c.model(), learner(&m.c.head.client), u.Output.N)
		}
	case told || streamed > 0:
		httplimit.SettleAtLeast(m.r, m.g.price(models, u.Model, m.c.likely(&u, asked, streamed)))
	}
	return m.ReadCloser.Close()
}

// booked is what an answer says was used. Of an answer that lacks a part, the request says how much its input was, and what else is
// in the total is output.
func booked(u *usage.Usage, asked usage.Asked) map[string]weir.Amount {
	out := amountsOf(u)
	if !u.Input.Known {
		input := asked.Input
		if !u.Output.Known {
			input = 0
		}
		out["input"] = weir.Whole(input)
	}
	if !u.Output.Known {
		out["output"] = max(0, out["tokens"]-out["input"]-out["cached"])
	}
	out["tokens"] = max(out["tokens"], out["input"]+out["cached"]+out["output"])
	return out
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
func (c *call) likely(u *usage.Usage, asked usage.Asked, streamed int64) map[string]weir.Amount {
	out := amountsOf(u)
	for name, estimated := range c.amounts {
		if name != "usd" { // which is made of the others
			out[name] = max(out[name], estimated)
		}
	}
	out["input"] = max(out["input"], weir.Whole(asked.Input)-out["cached"])
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
