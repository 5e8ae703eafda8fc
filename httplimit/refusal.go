package httplimit

import (
	"bytes"
	"hash/fnv"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

// Refused describes a refusal to the client. Templates are executed with it.
type Refused struct {
	// Status is 429, 403, 400 or 503. Code is the error code for programs.
	Status            int
	Code, Message     string
	Rule              string
	Limit             int64  // rounded down
	Amount            string // what the limit counts, or "" for requests
	WindowSeconds     int64  // 0 for a limit on requests in flight
	RetryAfterSeconds int64  // 0 if waiting doesn't help
	RetryIsAGuess     bool   // the wait is an estimate: a slot may be free sooner or later
	ResetAt           time.Time

	exact counter.Amount // the limit, unrounded
}

// RetryAfter returns the seconds that a refused client should wait: the true wait, rounded up, plus
// jitter that is constant for a client and differs between clients, so that clients that were
// refused together don't return together. It is 0 if waiting doesn't help.
func RetryAfter(req *weir.Request, d *weir.Decision) int64 {
	switch {
	case d.Allowed:
		return 0
	case d.Reason == weir.ReasonUnavailable:
		return 1 + int64(jitter(req)*4)
	case d.RetryAfter < 0:
		return 0
	case d.Reason == weir.ReasonCooldown: // belongs to one client, and its end is known
		return max(1, seconds(d.RetryAfter))
	case d.RetryAfter < 2*time.Second && d.Policy != nil && d.Policy.PerClient:
		return max(1, seconds(d.RetryAfter))
	}
	// Pick a whole second evenly. If jitter were added before rounding, nearly all clients that
	// have to wait for exactly 3 s would return after 4.
	first, last := seconds(d.RetryAfter), seconds(d.RetryAfter+min(d.RetryAfter/5, 30*time.Second))
	return max(1, first+int64(jitter(req)*float64(last-first+1)))
}

// jitter returns a number from 0 to 1 for a client, the same on every node.
func jitter(req *weir.Request) float64 {
	ip := req.IP.As16()
	if !req.IP.Unmap().Is4() {
		clear(ip[8:]) // a client can use any address of its /64
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, req.APIKey+"\x00"+req.User+"\x00"+req.Org+"\x00"+string(ip[:]))
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd // FNV alone hardly changes the upper bits
	return float64(x>>11) / (1 << 53)
}

// Refuse answers a refused request. Call [Answerer.SetHeaders] first.
func (a *Answerer) Refuse(w http.ResponseWriter, r *http.Request, req *weir.Request, d *weir.Decision, now time.Time) {
	x := Describe(req, d, now)
	a.send(w, r, &x, d)
}

// overloaded is the refusal of requests that are shed without a decision.
var overloaded = Refused{
	Status: http.StatusServiceUnavailable, Code: jsonerror.Overloaded, Message: "The server is overloaded; try again shortly",
	RetryAfterSeconds: 1,
}

func (a *Answerer) send(w http.ResponseWriter, r *http.Request, x *Refused, d *weir.Decision) {
	contentType, body := a.render(x, d, r)
	f := fields{w.Header(), make([]string, 0, 5)}
	f.set("Cache-Control", "no-store")
	f.set("Content-Type", contentType)
	f.setInt("Content-Length", int64(len(body)))
	if x.Rule != "" {
		f.set("X-Ratelimit-Rule", x.Rule)
	}
	if x.RetryAfterSeconds > 0 {
		f.setInt("Retry-After", x.RetryAfterSeconds)
	}
	w.WriteHeader(x.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
}

func (a *Answerer) render(x *Refused, d *weir.Decision, r *http.Request) (contentType string, body []byte) {
	replaced := d.Reason == weir.ReasonLimited || d.Reason == weir.ReasonCooldown
	if replaced && a.opts.Refusal.Status != 0 {
		x.Status = a.opts.Refusal.Status
	}
	if replaced && a.body != nil {
		var b bytes.Buffer
		if a.body.Execute(&b, *x) == nil {
			contentType, body = "text/plain; charset=utf-8", b.Bytes()
		}
	}
	switch {
	case body != nil:
	case acceptsProblem(r.Header["Accept"]):
		contentType, body = "application/problem+json", appendProblem(nil, x, d)
	default:
		body = jsonerror.AppendHead(append(make([]byte, 0, 256), '{'), x.Code, x.Message)
		body = append(appendDetails(append(body, `,"details":`...), x), "}}\n"...)
		contentType = "application/json"
	}
	if replaced && a.opts.Refusal.ContentType != "" {
		contentType = a.opts.Refusal.ContentType
	}
	return contentType, body
}

// acceptsProblem reports whether a client accepts problem details (RFC 9457).
func acceptsProblem(accept []string) bool {
	for _, line := range accept {
		for element := range strings.SplitSeq(line, ",") {
			media, params, _ := strings.Cut(element, ";")
			if !strings.EqualFold(strings.TrimSpace(media), "application/problem+json") {
				continue
			}
			for param := range strings.SplitSeq(params, ";") {
				if name, weight, ok := strings.Cut(strings.TrimSpace(param), "="); ok && strings.EqualFold(name, "q") {
					q, err := strconv.ParseFloat(weight, 64)
					return err == nil && q > 0
				}
			}
			return true
		}
	}
	return false
}

// Describe returns why a request was refused at now, for edges with an answer format of their own.
func Describe(req *weir.Request, d *weir.Decision, now time.Time) Refused {
	x := Refused{Status: http.StatusTooManyRequests, Code: jsonerror.RateLimitExceeded, Rule: d.Rule, RetryAfterSeconds: RetryAfter(req, d)}
	if p := d.Policy; p != nil {
		x.Limit, x.exact, x.Amount = p.Limit.Count, p.Limit.Amount(), p.Amount
		if !isSlots(p) {
			x.WindowSeconds = seconds(p.Limit.Window)
		}
		x.ResetAt = time.Unix(resetUnix(d, now), 0).UTC()
	}
	switch d.Reason {
	case weir.ReasonDenied:
		x.Status, x.Code, x.Message = http.StatusForbidden, jsonerror.KeyBlocked, "This client is blocked"
	case weir.ReasonIdentityRequired:
		x.Status, x.Code, x.Message = http.StatusForbidden, jsonerror.IdentityRequired, "This request must identify its client"
	case weir.ReasonUnreadablePath:
		x.Status, x.Code, x.Message = http.StatusBadRequest, jsonerror.UnreadablePath, unreadable
	case weir.ReasonUnavailable:
		x.Status, x.Code, x.Message = http.StatusServiceUnavailable, jsonerror.LimiterUnavailable, "The rate limiter is unavailable; try again shortly"
	case weir.ReasonCooldown:
		b := []byte("This client kept sending requests while it was told to wait, and is refused for ")
		x.Code, x.Message = jsonerror.Cooldown, string(appendWait(b, x.RetryAfterSeconds))+" more"
	default:
		x.Message = exceeded(d)
		x.RetryIsAGuess = d.Policy != nil && isSlots(d.Policy) && x.RetryAfterSeconds > 0
	}
	return x
}

// unreadable tells the client what to send instead of a path that can't be matched against rules.
var unreadable = "The path is longer than " + strconv.Itoa(private.MaxPath) +
	" bytes, or its escapes, dots, slashes and ;parameters can be read in too many ways: send it shorter, and as plain as it is meant"

// exceeded returns the message of a refusal by a limit.
func exceeded(d *weir.Decision) string {
	if d.Policy == nil {
		return "Rate limit exceeded"
	}
	p, l := d.Policy, &d.Policy.Limit
	if d.RetryAfter == weir.Never {
		return neverAdmitted(p)
	}
	b := make([]byte, 0, 128)
	switch {
	case isSlots(p):
		b = append(appendCount(append(b, "Limit of "...), l.Count, "request"), " at a time"...)
	case p.Amount != "":
		b = append(append(append(b, "Rate limit of "...), l.Amount().String()...), ' ')
		b = appendWindow(append(b, p.Amount...), l)
	default:
		b = appendWindow(appendCount(append(b, "Rate limit of "...), l.Count, "request"), l)
	}
	b = append(b, " exceeded"...)
	if p.Endpoint != "" {
		b = append(append(b, " for "...), p.Endpoint...)
	}
	return string(b)
}

// neverAdmitted returns the message to a request that exceeds the limit's capacity.
func neverAdmitted(p *counter.Policy) string {
	what, most := "of this cost", strconv.FormatInt(p.Limit.Max(), 10)
	if p.Amount != "" {
		if what = "for so many " + p.Amount; p.Limit.Burst == 0 {
			most = p.Limit.Amount().String()
		}
	}
	return "A request " + what + " can never be admitted: the limit admits at most " + most + " at once, and waiting does not help"
}

// windowUnits lists the units for windows in messages, longest first.
var windowUnits = []struct {
	length time.Duration
	name   string
}{{7 * 24 * time.Hour, "week"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}, {time.Millisecond, "millisecond"}}

// appendWindow appends a window in words: per day, per 15 minutes.
func appendWindow(b []byte, l *weir.Limit) []byte {
	b = append(b, " per "...)
	if l.Calendar.Unit != counter.NoUnit {
		return append(b, l.Calendar.Unit.String()...)
	}
	for _, u := range windowUnits {
		switch {
		case u.length == time.Millisecond && l.Window > time.Second:
			return append(strconv.AppendFloat(b, l.Window.Seconds(), 'f', -1, 64), " seconds"...)
		case l.Window == u.length:
			return append(b, u.name...)
		case l.Window%u.length == 0:
			return appendCount(b, int64(l.Window/u.length), u.name)
		}
	}
	return append(strconv.AppendFloat(b, l.Window.Seconds()*1e3, 'f', -1, 64), " milliseconds"...)
}

// appendWait appends a wait in words, rounded up: 90 seconds, 2 hours.
func appendWait(b []byte, seconds int64) []byte {
	for _, u := range windowUnits {
		if length := int64(u.length / time.Second); length > 0 && seconds >= 2*length {
			return appendCount(b, (seconds+length-1)/length, u.name)
		}
	}
	return appendCount(b, seconds, "second")
}

func appendCount(b []byte, n int64, of string) []byte {
	b = append(append(strconv.AppendInt(b, n, 10), ' '), of...)
	if n != 1 {
		b = append(b, 's')
	}
	return b
}

// Bodies are written without encoding/json: in a storm of retries, a refusal must cost less than
// the request that it refuses.

// appendDetails appends the details of a refusal for programs, without empty members.
func appendDetails(b []byte, x *Refused) []byte {
	b = append(b, '{')
	first := len(b)
	member := func(name string) {
		if len(b) > first {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
	}
	if x.Rule != "" {
		member("rule")
		b = jsonerror.AppendString(b, x.Rule)
	}
	limited := x.Code == jsonerror.RateLimitExceeded
	if limited {
		member("limit")
		if x.Amount == "" {
			b = strconv.AppendInt(b, x.Limit, 10)
		} else {
			b = append(b, x.exact.String()...)
			member("amount")
			b = jsonerror.AppendString(b, x.Amount)
		}
		if x.WindowSeconds > 0 {
			member("window_seconds")
			b = strconv.AppendInt(b, x.WindowSeconds, 10)
		}
	}
	if x.RetryAfterSeconds > 0 {
		member("retry_after_seconds")
		b = strconv.AppendInt(b, x.RetryAfterSeconds, 10)
	}
	if x.RetryIsAGuess {
		member("retry_is_a_guess")
		b = append(b, "true"...)
	}
	if limited {
		member("reset_at")
		b = append(x.ResetAt.AppendFormat(append(b, '"'), time.RFC3339), '"')
	}
	return append(b, '}')
}

// appendProblem appends a problem document (RFC 9457) with the types of the IETF draft.
func appendProblem(b []byte, x *Refused, d *weir.Decision) []byte {
	const types = "https://iana.org/assignments/http-problem-types#"
	kind, title := "about:blank", http.StatusText(x.Status)
	switch {
	case x.Code == jsonerror.RateLimitExceeded:
		kind, title = types+"quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
	case x.Code == jsonerror.Cooldown:
		kind, title = types+"abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern"
	case x.Status == http.StatusServiceUnavailable:
		kind, title = types+"temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"
	}
	b = jsonerror.AppendString(append(b, `{"type":`...), kind)
	b = jsonerror.AppendString(append(b, `,"title":`...), title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(x.Status), 10)
	b = jsonerror.AppendString(append(b, `,"detail":`...), x.Message)
	b = jsonerror.AppendString(append(b, `,"code":`...), x.Code)
	between := `,"violated-policies":[`
	for _, l := range d.Limits() {
		if !l.Allowed && !l.Degraded && !l.Policy.Shadow {
			b = jsonerror.AppendString(append(b, between...), l.Policy.Name)
			between = ","
		}
	}
	if between == "," {
		b = append(b, ']')
	}
	b = appendDetails(append(b, `,"details":`...), x)
	return append(b, "}\n"...)
}
