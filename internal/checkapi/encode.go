package checkapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
)

// appendDecision appends the fields of a CheckResponse and the brace that ends
// them. It writes what encoding/json would, in a tenth of the time. Of a refusal x says why.
func appendDecision(b []byte, d *weir.Decision, x *httplimit.Refused) []byte {
	remaining := int64(-1)
	if d.Policy != nil && !d.Uncounted() {
		remaining = d.Remaining
	}
	b = strconv.AppendBool(append(b, `"allowed":`...), d.Allowed)
	b = jsonerror.AppendString(append(b, `,"rule":`...), d.Rule)
	b = appendLimit(b, d.Policy)
	b = appendInt(append(b, `,"remaining":`...), remaining)
	b = appendInt(append(b, `,"retry_after_ms":`...), retryAfterMS(d, x))
	b = appendInt(append(b, `,"reset_after_ms":`...), milliseconds(d.ResetAfter))
	b = appendInt(append(b, `,"delay_ms":`...), milliseconds(d.Delay))
	b = strconv.AppendBool(append(b, `,"degraded":`...), d.Degraded)
	b = appendInt(append(b, `,"rules_version":`...), d.RulesVersion)
	b = appendLimits(append(b, `,"limits":`...), d)
	if d.Receipt != "" {
		b = jsonerror.AppendString(append(b, `,"receipt":`...), d.Receipt)
	}
	if !d.Allowed {
		b = jsonerror.AppendString(append(b, `,"reason":`...), d.Reason.String())
		b = jsonerror.AppendString(append(b, `,"code":`...), x.Code)
		b = jsonerror.AppendString(append(b, `,"message":`...), x.Message)
	}
	return append(b, '}')
}

func appendLimits(b []byte, d *weir.Decision) []byte {
	b = append(b, '[')
	limits := d.Limits()
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		remaining := l.Remaining
		if l.Degraded {
			remaining = -1
		}
		b = jsonerror.AppendString(append(b, `{"rule":`...), l.Policy.Rule)
		b = strconv.AppendBool(append(b, `,"allowed":`...), l.Allowed)
		b = appendLimit(b, l.Policy)
		b = appendInt(append(b, `,"remaining":`...), remaining)
		b = strconv.AppendBool(append(b, `,"shadow":`...), l.Policy.Shadow)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendLimit appends a limit, and its burst where that says how much can be left.
func appendLimit(b []byte, p *weir.Policy) []byte {
	if p == nil {
		return append(b, `,"limit":-1`...)
	}
	b = appendInt(append(b, `,"limit":`...), p.Limit.Count)
	if most := p.Limit.Max(); most != p.Limit.Count {
		b = appendInt(append(b, `,"burst":`...), most)
	}
	return b
}

// retryAfterMS is the time until a refused request would be allowed, -1 if
// waiting doesn't help. Nobody knows when a store comes back: then it is what the header says.
func retryAfterMS(d *weir.Decision, x *httplimit.Refused) int64 {
	switch {
	case d.Allowed:
		return 0
	case d.Reason == weir.ReasonUnavailable:
		return 1000 * x.RetryAfterSeconds
	case d.RetryAfter < 0:
		return -1
	}
	return milliseconds(d.RetryAfter)
}

// milliseconds rounds up: a client that waits that long has waited long enough.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

var noStore = []string{"no-store"}

// setRefusal sets the headers that refusals have beside the rate limit's own.
func setRefusal(h http.Header, x *httplimit.Refused) {
	h["Cache-Control"] = noStore
	if x.RetryAfterSeconds > 0 {
		h["Retry-After"] = []string{strconv.FormatInt(x.RetryAfterSeconds, 10)}
	}
	if x.Rule != "" {
		h["X-Ratelimit-Rule"] = []string{x.Rule}
	}
}

// send writes an answer that is complete. Short ones get their Content-Length
// from net/http, which has it at hand; others would be sent in chunks.
func send(w http.ResponseWriter, status int, body []byte) {
	if len(body) > 1024 {
		w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	if status != http.StatusOK {
		w.WriteHeader(status)
	}
	_, _ = w.Write(body) // the client may have left
}
