package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// Options of a [Client].
type Options struct {
	// URL is where a node's check API listens: http://127.0.0.1:8080.
	URL string
	// Token is sent as a bearer token, if the node asks for one (--http-token).
	Token string
	// TLS is for nodes with certificates of their own, or that ask for the client's. Nil means the system's.
	TLS *tls.Config
	// Timeout is how long Weir may take to answer. 0 means 250 ms.
	Timeout time.Duration
	// Fallback decides while Weir can't be reached, by rules and counters of this process. Nil means that
	// checks fail then, with [ErrUnreachable].
	Fallback *weir.Limiter
}

// Client asks Weir over HTTP. Checks that are made at the same time travel together. It is safe for
// concurrent use. Make one with [New].
type Client struct {
	base, token string
	timeout     time.Duration
	fallback    *weir.Limiter
	http        http.RoundTripper

	mu       sync.Mutex
	queue    []*waiting
	calls    int       // under way
	failures int       // in a row
	rest     time.Time // Weir isn't asked until then
}

// ErrUnreachable is why there is no decision of Weir: no node answers in time, or it is overloaded.
var ErrUnreachable = errors.New("client: Weir can't be reached")

// Error is an answer that isn't a decision. Its code is one of those in docs/http.md.
type Error struct {
	Status  int
	Code    string
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("client: Weir answers %d %s: %s", e.Status, e.Code, e.Message)
}

// Is lets errors.Is tell receipts apart as weir.Limiter.Finish does.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case "RECEIPT_INVALID":
		return target == weir.ErrReceiptInvalid
	case "RECEIPT_USED":
		return target == weir.ErrUsed
	case "RECEIPT_EXPIRED":
		return target == weir.ErrReceiptExpired
	}
	return false
}

// Request is what Weir is asked about. Only what the rules look at has to be filled in.
type Request struct {
	Key          string
	Method, Path string
	IP           netip.Addr
	// User, Org and Tier are the client's, as this program has established them.
	User, Org, Tier string
	// Attributes are what else rules count by: "header:X-Tenant", "claim:plan", or any name for attr:NAME.
	Attributes map[string]string
	// Cost is how many tokens the request takes. 0 means 1.
	Cost int64
	// Peek asks how a request of cost 1 would be answered, and takes nothing.
	Peek bool
	// Receipt asks for a receipt, for [Client.Refund]. The fallback gives none.
	Receipt bool
}

// Decision is Weir's answer.
type Decision struct {
	Allowed bool
	// Status is what an HTTP service would answer: 200, 429, 403, 400 or 503.
	Status int
	// Rule is the id of the rule that binds, or "".
	Rule string
	// Limit is that rule's limit, or -1 if none applies, and Burst how much can be left at most, if that isn't Limit.
	Limit, Burst int64
	// Remaining is how many tokens are left, or -1 if that isn't known.
	Remaining int64
	// RetryAfter, of a refusal, is the time until it would be allowed, or negative if waiting doesn't help.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration
	// Delay is how long to hold an allowed request back, for its turn in a queue.
	Delay time.Duration
	// Degraded: a limit couldn't be counted, or Weir couldn't be reached and the fallback has decided.
	Degraded bool
	// Unreached is why the fallback has decided, or nil.
	Unreached    error
	RulesVersion int64
	Receipt      string
	// Reason, Code and Message say why a request was refused.
	Reason, Code, Message string
	// Limits has every limit that applied.
	Limits []LimitStatus
}

// LimitStatus is how one limit stands after a check.
type LimitStatus struct {
	Rule      string `json:"rule"`
	Allowed   bool   `json:"allowed"`
	Limit     int64  `json:"limit"`
	Burst     int64  `json:"burst"`
	Remaining int64  `json:"remaining"`
	Shadow    bool   `json:"shadow"`
}

// New makes a Client. It doesn't connect yet.
func New(opts Options) (*Client, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("client: URL: must be that of a node's check API, such as http://127.0.0.1:8080")
	}
	c := &Client{
		base: strings.TrimSuffix(u.String(), "/"), token: opts.Token, timeout: opts.Timeout, fallback: opts.Fallback,
		http: &http.Transport{TLSClientConfig: opts.TLS, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second},
	}
	if c.timeout <= 0 {
		c.timeout = 250 * time.Millisecond
	}
	return c, nil
}

// Close closes connections that aren't in use.
func (c *Client) Close() {
	if t, ok := c.http.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Check asks whether a request may go. A refusal is not an error. Without a fallback, an error that is
// [ErrUnreachable] says that nobody knows; an *[Error] says that Weir can't read this check, or refuses this caller.
func (c *Client) Check(ctx context.Context, req *Request) (Decision, error) {
	body, err := json.Marshal(req.wire())
	if err != nil {
		return Decision{}, err
	}
	d, err := c.join(ctx, body)
	if err == nil || c.fallback == nil || !errors.Is(err, ErrUnreachable) {
		return d, err
	}
	return c.local(ctx, req, err), nil
}

// Refund gives back what a check with a receipt has taken, once. Errors are those of weir.Limiter.Finish, for errors.Is.
func (c *Client) Refund(ctx context.Context, receipt string) error {
	body, err := json.Marshal(map[string]string{"receipt": receipt})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	_, err = c.post(ctx, "/v1/refund", body)
	return err
}

// local has the fallback decide.
func (c *Client) local(ctx context.Context, req *Request, why error) Decision {
	r := weir.Request{
		Edge: "client", APIKey: req.Key, KeyVerified: true, User: req.User, Org: req.Org, Tier: req.Tier, TierVerified: true,
		IP: req.IP.WithZone(""), Method: req.Method, Path: req.Path, Cost: req.Cost, Peek: req.Peek,
		Attr: func(name string) string {
			for k, v := range req.Attributes {
				if sameAttribute(k, name) {
					return v
				}
			}
			return ""
		},
	}
	ld, _ := c.fallback.Check(ctx, &r) // its error says that a store is down, and the decision is good all the same
	d := Decision{
		Allowed: ld.Allowed, Status: http.StatusOK, Rule: ld.Rule, Limit: -1, Remaining: -1, RetryAfter: ld.RetryAfter,
		ResetAfter: ld.ResetAfter, Delay: ld.Delay, Degraded: true, Unreached: why, RulesVersion: ld.RulesVersion,
	}
	if ld.Policy != nil && !ld.Uncounted() {
		d.Limit, d.Burst, d.Remaining = numbers(ld.Policy, ld.Remaining)
	}
	if !d.Allowed {
		d.Status, d.Code = refusal(&ld)
		d.Reason, d.Message = ld.Reason.String(), "refused by this process, as Weir can't be reached"
	}
	for _, l := range ld.Limits() {
		s := LimitStatus{Rule: l.Policy.Rule, Allowed: l.Allowed, Shadow: l.Policy.Shadow}
		s.Limit, s.Burst, s.Remaining = numbers(l.Policy, l.Remaining)
		d.Limits = append(d.Limits, s)
	}
	return d
}

func numbers(p *weir.Policy, left int64) (limit, burst, remaining int64) {
	if most := p.Limit.Max(); most != p.Limit.Count {
		burst = most
	}
	return p.Limit.Count, burst, left
}

// sameAttribute is as the check API has it: attr:region is region, and names of headers have no case.
func sameAttribute(a, b string) bool {
	a, b = strings.TrimPrefix(a, "attr:"), strings.TrimPrefix(b, "attr:")
	return a == b || strings.HasPrefix(a, "header:") && strings.EqualFold(a, b)
}

// refusal is the status and the code that Weir answers a refusal with.
func refusal(d *weir.Decision) (status int, code string) {
	switch d.Reason {
	case weir.ReasonCooldown:
		return http.StatusTooManyRequests, "COOLDOWN"
	case weir.ReasonDenied:
		return http.StatusForbidden, "KEY_BLOCKED"
	case weir.ReasonIdentityRequired:
		return http.StatusForbidden, "IDENTITY_REQUIRED"
	case weir.ReasonUnreadablePath:
		return http.StatusBadRequest, "UNREADABLE_PATH"
	case weir.ReasonUnavailable:
		return http.StatusServiceUnavailable, "LIMITER_UNAVAILABLE"
	}
	return http.StatusTooManyRequests, "RATE_LIMIT_EXCEEDED"
}

// wireRequest is the body of /v1/check.
type wireRequest struct {
	Key        string            `json:"key,omitempty"`
	Method     string            `json:"method,omitempty"`
	Path       string            `json:"path,omitempty"`
	IP         string            `json:"ip,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Cost       *int64            `json:"cost,omitempty"`
	Receipt    bool              `json:"receipt,omitempty"`
}

func (r *Request) wire() wireRequest {
	w := wireRequest{Key: r.Key, Method: r.Method, Path: r.Path, Receipt: r.Receipt, Attributes: r.Attributes}
	if r.User != "" || r.Org != "" || r.Tier != "" {
		w.Attributes = make(map[string]string, len(r.Attributes)+3)
		for k, v := range r.Attributes {
			w.Attributes[k] = v
		}
		for k, v := range map[string]string{"user": r.User, "org": r.Org, "tier": r.Tier} {
			if v != "" {
				w.Attributes[k] = v
			}
		}
	}
	if r.IP.IsValid() {
		w.IP = r.IP.WithZone("").String()
	}
	if peek := int64(0); r.Peek {
		w.Cost = &peek
	} else if r.Cost != 0 {
		w.Cost = &r.Cost
	}
	return w
}

// wireResult is one result of /v1/checks.
type wireResult struct {
	Status       int           `json:"status"`
	Allowed      bool          `json:"allowed"`
	Rule         string        `json:"rule"`
	Limit        int64         `json:"limit"`
	Burst        int64         `json:"burst"`
	Remaining    int64         `json:"remaining"`
	RetryAfterMS int64         `json:"retry_after_ms"`
	ResetAfterMS int64         `json:"reset_after_ms"`
	DelayMS      int64         `json:"delay_ms"`
	Degraded     bool          `json:"degraded"`
	RulesVersion int64         `json:"rules_version"`
	Limits       []LimitStatus `json:"limits"`
	Receipt      string        `json:"receipt"`
	Reason       string        `json:"reason"`
	Code         string        `json:"code"`
	Message      string        `json:"message"`
	Error        *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (w *wireResult) decision() (Decision, error) {
	if w.Error != nil {
		return Decision{}, &Error{Status: w.Status, Code: w.Error.Code, Message: w.Error.Message}
	}
	return Decision{
		Allowed: w.Allowed, Status: w.Status, Rule: w.Rule, Limit: w.Limit, Burst: w.Burst, Remaining: w.Remaining,
		RetryAfter: time.Duration(w.RetryAfterMS) * time.Millisecond, ResetAfter: time.Duration(w.ResetAfterMS) * time.Millisecond,
		Delay: time.Duration(w.DelayMS) * time.Millisecond, Degraded: w.Degraded, RulesVersion: w.RulesVersion,
		Receipt: w.Receipt, Reason: w.Reason, Code: w.Code, Message: w.Message, Limits: w.Limits,
	}, nil
}

// maxAnswer is how much of an answer is read: a thousand results with many limits each are less.
const maxAnswer = 8 << 20

// post sends a body, and returns the answer's. What is no answer of Weir is an ErrUnreachable.
func (c *Client) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if res.StatusCode == http.StatusOK {
		return text, nil
	}
	var answer wireResult
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error == nil {
		return nil, fmt.Errorf("%w: what answers there with %s isn't Weir", ErrUnreachable, res.Status)
	}
	answer.Status = res.StatusCode
	_, err = answer.decision()
	if res.StatusCode >= 500 {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return nil, err
}
