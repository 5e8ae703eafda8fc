package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// The cost of a call to an AI model is known only when its response is complete. If a rule may
// count amounts, the gateway reads how much a request asks for, reserves that much, and settles by
// the usage that the response reports. It rejects calls that can't be metered.

const (
	// reserveFor is the time after which an unsettled reservation is returned, for rules with `unsettled: give_back`.
	reserveFor = 10 * time.Minute
	// assumedOutput is the assumed maximum of tokens in an answer if nothing else is known.
	assumedOutput = 4096
	// lateOutput is how many output tokens a long body may ask for if there is no output limit in its first MiB.
	// Clients may write max_tokens after their pictures.
	lateOutput = 32768
	// unknownModel is the model of a call whose first MiB doesn't name a model. If the call had no model at all, a rule
	// with missing: skip would let it pass.
	unknownModel = "unknown"
)

// modelCall is a request that may be a call to an AI model.
type modelCall struct {
	httplimit.Estimate
	kind     kind
	asked    usage.Asked
	foreign  int64            // an output limit that the API at this path may or may not respect
	isCall   bool             // the body may be a call to a model
	models   []string         // the models that the path, the query and the body name
	model    string           // the model that rules count by; "" if unknown
	others   int              // how many other models may answer instead of the requested one
	most     int64            // how many output tokens are reserved; 0 if unknown
	fault    *jsonerror.Error // the response if the call can't be metered and a limit applies
	head     *head            // nil if the body wasn't read
	long     *long            // the body of an admitted call, if head doesn't have the whole body
	unsized  bool             // the rest of the body may have more text than was reserved for
	edited   bool             // the upstream gets a different body from the one that the client sent
	reserved bool             // amounts are reserved, so they must be settled
}

type kind uint8

const (
	isJSON kind = iota
	isForm      // multipart, as for audio and images
	isFile      // uploaded to be stored
)

type callKey struct{}

func callOf(r *http.Request) *modelCall {
	c, _ := r.Context().Value(callKey{}).(*modelCall)
	return c
}

// estimate returns the request with the amounts that it will probably use. If the body is invalid, doesn't fit into
// memory, or stops arriving, it sends an error itself, and answered is true.
func (g *Gateway) estimate(w http.ResponseWriter, r *http.Request) (_ *http.Request, answered bool) {
	if !hasBody(r) && r.Header["Upgrade"] == nil || !g.opts.Limit.CountsAmounts(r) {
		return r, false
	}
	c := &modelCall{fault: unmetered(r)}
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
	c.Model, c.Choices, c.Reserve = c.model, c.asked.Choices, reserveFor
	if c.Model == "" && (c.fault != nil || c.kind == isForm || !c.head.whole()) {
		c.Model = unknownModel
	}
	r = httplimit.WithEstimate(r, &c.Estimate)
	return r.WithContext(context.WithValue(r.Context(), callKey{}, c)), false
}

// reserve estimates what a call will use, and sets the amounts to be reserved.
func (g *Gateway) reserve(c *modelCall) {
	if c.kind == isFile || c.kind == isJSON && c.head.whole() && len(c.models) == 0 && !c.isCall {
		return // not a call to a known model: the rules' defaults apply
	}
	input, output := c.asked.Input, c.asked.Output()
	assumed := c.asked.OutputOf(max(assumedOutput, c.foreign)).N
	if !output.Known {
		c.Guess = true
		if each, known := g.opts.Learned.estimate(c.model); known {
			output = c.asked.OutputOf(max(each, c.foreign))
		}
		if c.kind == isJSON && !c.head.whole() {
			output.N, output.Known = max(output.N, assumed, lateOutput), true
		}
	}
	c.most = output.N
	all := func(output int64) map[string]counter.Amount {
		return g.price(c.models, "", map[string]counter.Amount{
			"input": counter.Whole(input), "output": counter.Whole(output), "tokens": counter.Whole(input + output),
		})
	}
	if output.Known {
		c.Amounts = all(output.N)
		return
	}
	c.Assumed = all(assumed)
	if c.foreign > 0 {
		c.Amounts = all(c.asked.OutputOf(c.foreign).N)
	} else {
		c.Amounts = g.price(c.models, "", map[string]counter.Amount{"input": counter.Whole(input)})
	}
}

// mostOutput returns the maximum number of tokens that an answer is assumed to have.
func mostOutput(a usage.Asked) int64 {
	if output := a.Output(); output.Known {
		return output.N
	}
	return a.OutputOf(assumedOutput).N
}

func (g *Gateway) price(asked []string, answered string, of map[string]counter.Amount) map[string]counter.Amount {
	if _, known := of["usd"]; !known {
		if usd, known := g.opts.Limit.Price(asked, answered, of); known {
			of["usd"] = usd
		}
	}
	return of
}

func (c *modelCall) release() {
	if c != nil && c.head != nil {
		c.head.release()
	}
}

// admitted is called before a call is forwarded. If amounts were reserved for a streamed chat, it makes the upstream
// report the usage. If a limit applies to the call, and the call can't be metered, it returns an error.
func (c *modelCall) admitted(r *http.Request) (fault *jsonerror.Error) {
	if c == nil {
		return nil
	}
	if c.reserved = httplimit.Reserved(r); c.reserved && c.fault != nil {
		return c.fault
	}
	if c.head == nil {
		return nil
	}
	delete(r.Header, "Expect") // the gateway told the client to continue when it read the body
	meters := c.reserved && c.kind == isJSON
	edits := meters && usage.TellsUsageIfAsked(r.URL.Path)
	switch {
	case c.head.whole():
		text := c.head.text
		if edits && c.asked.NoUsage {
			text, c.edited = usage.WithUsage(text)
		}
		lengthen(r, len(text)-len(c.head.text))
		c.head.forward(text)
		r.Body = c.head
	case meters:
		c.long = &long{ReadCloser: r.Body, body: usage.NewBody(), most: c.most, other: c.others, edits: edits}
		if c.unsized {
			c.long.input = max(c.asked.Input, 1)
		}
		r.Body, c.edited = c.long, edits
		if edits {
			lengthen(r, len(usage.Blank))
		}
	}
	if c.edited {
		dropDigests(r.Header)
	}
	return nil
}

// lengthen adds n bytes to the Content-Length of a request.
func lengthen(r *http.Request, n int) {
	if n != 0 && r.ContentLength >= 0 {
		r.ContentLength += int64(n)
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
}

// dropDigests removes the digests of a body that the gateway changes. The gateway also changes bodies that have
// digests, because otherwise clients could use a digest to avoid metering.
func dropDigests(h http.Header) {
	for _, name := range []string{"Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		delete(h, name)
	}
}

// all returns everything that the call asks for, including what is in the part of the body that arrived after the
// decision.
func (c *modelCall) all() (asked usage.Asked, models []string) {
	if c.long == nil {
		return c.asked, c.models
	}
	asked = c.long.asked()
	return asked, append(slices.Clone(c.models), asked.Model)
}

// watchUsage wraps a response's body, so that the request is settled at its end.
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
	s := res.StatusCode
	refused := s >= 400 && s < 500
	switch {
	case refused: // if the response reports a usage, it is settled at the end; otherwise the model wasn't called
		g.settleNothing(res.Request)
	case s < 200 || s > 299 || s == http.StatusAccepted: // the usage is unknown, or not known yet, so the reserved amounts stay charged
		return
	}
	reader := usage.NewReader(res.Header.Get("Content-Type"), res.Header.Get("Content-Encoding"))
	res.Body = &metered{ReadCloser: res.Body, reader: reader, g: g, c: c, r: res.Request, refused: refused}
}

// settleNothing gives back everything that was reserved for a request.
func (g *Gateway) settleNothing(r *http.Request) {
	nothing := map[string]counter.Amount{"input": 0, "cached": 0, "output": 0, "tokens": 0, "usd": 0}
	for _, name := range g.opts.Limit.Amounts() {
		nothing[name] = 0
	}
	httplimit.Settle(r, nothing)
}

// metered wraps a response's body, to read the usage that the body reports.
type metered struct {
	io.ReadCloser
	reader *usage.Reader
	g      *Gateway
	c      *modelCall
	r      *http.Request
	// refused means that the status is a 4xx. Such a response costs nothing unless it reports a usage.
	refused bool
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	_, _ = m.reader.Write(p[:n]) // Write never fails
	return n, err
}

func (m *metered) Close() error {
	u, told := m.reader.Usage()
	streamed := m.reader.Streamed()
	asked, models := m.c.all()
	switch {
	case told && !u.Partial && (u.Output.Known || u.Tokens.Known):
		httplimit.Settle(m.r, m.g.price(models, u.Model, booked(&u, asked)))
		// Don't learn from answers that a limit cut off, or that had several choices: the server may have ignored n.
		if u.Output.Known && !asked.MaxOutput.Known && m.c.foreign == 0 && asked.Choices <= 1 {
			m.g.opts.Learned.learn(m.c.model, learner(&m.c.head.client), u.Output.N)
		}
	case told || streamed > 0 && !m.refused:
		httplimit.SettleAtLeast(m.r, m.g.price(models, u.Model, m.c.likely(&u, asked, streamed)))
	}
	return m.ReadCloser.Close()
}

// booked returns the usage that an answer reports. If the answer reports only a total, the estimated input of the
// request counts as input, and the rest as output.
func booked(u *usage.Usage, asked usage.Asked) map[string]counter.Amount {
	out := amountsOf(u)
	if !u.Input.Known {
		input := asked.Input
		if !u.Output.Known {
			input = 0
		}
		out["input"] = counter.Whole(input)
	}
	if !u.Output.Known {
		out["output"] = max(0, out["tokens"]-out["input"]-out["cached"])
	}
	out["tokens"] = max(out["tokens"], out["input"]+out["cached"]+out["output"])
	return out
}

func amountsOf(u *usage.Usage) map[string]counter.Amount {
	out := map[string]counter.Amount{}
	for name, a := range map[string]usage.Amount{"input": u.Input, "cached": u.Cached, "output": u.Output, "tokens": u.Tokens} {
		if a.Known {
			out[name] = counter.Whole(a.N)
		}
	}
	return out
}

// likely returns what a call has probably used if its answer was cut off or doesn't report the usage. It takes the
// maximum of what was reported, estimated and streamed. If it took less, a client that suppresses the report would get
// the call for free.
func (c *modelCall) likely(u *usage.Usage, asked usage.Asked, streamed int64) map[string]counter.Amount {
	out := amountsOf(u)
	for name, estimated := range c.Amounts {
		if name != "usd" { // usd is computed from the other amounts
			out[name] = max(out[name], estimated)
		}
	}
	out["input"] = max(out["input"], counter.Whole(asked.Input)-out["cached"])
	out["output"] = max(out["output"], counter.Whole(streamed))
	out["tokens"] = max(out["tokens"], out["input"]+out["cached"]+out["output"])
	return out
}

// readAmounts parses a header such as "812", which means tokens, or "tokens=812, usd=0.012". It
// returns nil if the header is invalid.
func readAmounts(header string) map[string]counter.Amount {
	if header == "" || len(header) > 1024 {
		return nil
	}
	out := map[string]counter.Amount{}
	for part := range strings.SplitSeq(header, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			name, value = "tokens", name
		}
		a, err := counter.ParseAmount(strings.TrimSpace(value))
		if err != nil {
			return nil
		}
		out[strings.TrimSpace(name)] = a
	}
	return out
}
