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
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
)

// Options of a [Client].
type Options struct {
	// URL is where a node's check API listens: http://127.0.0.1:8080.
	URL string
	// Token is sent as a bearer token, if the node asks for one (--http-token).
	Token string
	// TLS is for nodes whose certificates are from a private CA, or that require a client certificate. Nil means the
	// system's CAs.
	TLS *tls.Config
	// Timeout is how long Weir may take to answer. 0 means 250 ms.
	Timeout time.Duration
	// Fallback decides in this process while Weir can't be reached. If nil, checks fail with [ErrUnreachable].
	Fallback *weir.Limiter
}

// Client asks Weir over HTTP. Concurrent checks share a call. It is safe for concurrent use. Make one with [New].
type Client struct {
	base, token string
	timeout     time.Duration
	fallback    *weir.Limiter
	http        http.RoundTripper
	checks      joiner[wireResult]
	renewals    joiner[wireRenewal]
}

// ErrUnreachable means that Weir made no decision: no node answered in time, what answered isn't Weir, or the node is
// overloaded.
var ErrUnreachable = errors.New("client: Weir can't be reached")

// Error is an answer of Weir that isn't a decision. Its code is one of those in docs/reference/check-api.md.
type Error struct {
	Status  int
	Code    string
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("client: Weir answers %d %s: %s", e.Status, e.Code, e.Message)
}

// receiptErrors maps codes of the check API to the errors that the library returns in these cases.
var receiptErrors = map[string]error{
	jsonerror.ReceiptInvalid: weir.ErrReceiptInvalid, jsonerror.ReceiptUsed: counter.ErrUsed,
	jsonerror.ReceiptExpired: weir.ErrReceiptExpired, jsonerror.SlotLost: weir.ErrSlotLost,
}

// Unwrap lets errors.Is recognize the errors of weir.Limiter.Finish.
func (e *Error) Unwrap() error { return receiptErrors[e.Code] }

// Request describes a request to Weir. Set only what the rules look at.
type Request struct {
	Key          string
	Method, Path string
	IP           netip.Addr
	// User, Org and Tier identify the client. Weir trusts them, so this program must have verified them.
	User, Org, Tier string
	// Attributes are other properties that rules count by: "header:X-Tenant", "claim:plan", or any name for attr:NAME.
	Attributes map[string]string
	// Cost is how many tokens the request takes. 0 means 1.
	Cost int64
	// Peek asks how a request of cost 1 would be answered, without taking anything.
	Peek bool
	// Receipt asks for a receipt, for [Client.Refund]. The fallback gives none.
	Receipt bool
	// Amounts are what the request takes besides its cost, by name: tokens, usd. The attribute model says which model's
	// prices apply.
	Amounts map[string]counter.Amount
	// Reserve, if set, means that Amounts is an estimate, which [Client.Settle] replaces. Reserve is how long the estimate
	// stands at least. It implies Receipt. The fallback can't settle anything, so its estimates stay.
	Reserve time.Duration
	// ID identifies the request. If it is repeated with the same ID within a minute, on any node, it is charged only once.
	// The fallback charges every repetition.
	ID string
}

// Decision is Weir's answer.
type Decision struct {
	Allowed bool `json:"allowed"`
	// Status is what an HTTP service would answer: 200, 429, 403, 400 or 503.
	Status int `json:"status"`
	// Rule is the id of the rule that binds, or "": the one that refuses for longest, or else the one with the fewest requests left.
	Rule string `json:"rule"`
	// Limit is that rule's limit, or -1 if none applies.
	Limit int64 `json:"limit"`
	// Burst is the most that can be left, if that isn't Limit.
	Burst int64 `json:"burst"`
	// Remaining is how many tokens are left, or -1 if that isn't known.
	Remaining int64 `json:"remaining"`
	// RetryAfter is the time until a refused request would be allowed, or negative if waiting doesn't help.
	RetryAfter time.Duration `json:"-"`
	// ResetAfter is the time until the counter is full again.
	ResetAfter time.Duration `json:"-"`
	// Delay is how long to hold an allowed request back for its turn in a queue.
	Delay time.Duration `json:"-"`
	// Degraded means that a limit couldn't be counted, or that the fallback has decided.
	Degraded bool `json:"degraded"`
	// Unreached is the reason why the fallback has decided, or nil if a node has.
	Unreached    error `json:"-"`
	RulesVersion int64 `json:"rules_version"`
	// Receipt is set if the request asked for one and something was taken, and always if a slot was taken.
	Receipt string `json:"receipt"`
	// SlotTTL is how long the request's slot lasts unless it is renewed, or 0 without one. See [Client.Hold].
	SlotTTL time.Duration `json:"-"`
	// RetryIsGuess means that RetryAfter is when a slot ends by itself. It may be released sooner, or renewed.
	RetryIsGuess bool `json:"retry_is_a_guess"`
	// Reason, Code and Message say why a request was refused.
	Reason  string `json:"reason"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Limits has every limit that applied.
	Limits []LimitStatus `json:"-"`

	held *weir.Decision // the fallback's decision, if it holds a slot
}

// LimitStatus is the state of one limit after a check.
type LimitStatus struct {
	Rule    string `json:"rule"`
	Allowed bool   `json:"allowed"`
	// Amount is the name of the amount that the limit counts, or "" if it counts the cost of requests.
	Amount string `json:"amount"`
	// Limit and Remaining are rounded down if the limit counts an amount. LimitAmount and Left are exact.
	Limit, Remaining  int64          `json:"-"`
	LimitAmount, Left counter.Amount `json:"-"`
	// Burst is the most that can be left, if that isn't Limit.
	Burst int64 `json:"burst"`
	// WindowEnd is when the current window ends. It is set for fixed windows that count an amount or follow the calendar.
	WindowEnd time.Time `json:"window_end"`
	Shadow    bool      `json:"shadow"`
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
	c.checks = joiner[wireResult]{client: c, path: "/v1/checks", list: "checks", rests: true}
	c.renewals = joiner[wireRenewal]{client: c, path: "/v1/renew", list: "receipts", gather: 10 * time.Millisecond}
	return c, nil
}

// Close closes connections that aren't in use.
func (c *Client) Close() {
	(&http.Client{Transport: c.http}).CloseIdleConnections()
}

// Check asks whether a request may go. A refusal is not an error. The error is [ErrUnreachable] if there is no answer and no
// Fallback, and an *[Error] if Weir can't read this check or refuses this caller.
func (c *Client) Check(ctx context.Context, req *Request) (Decision, error) {
	body, err := json.Marshal(req.wire())
	if err != nil {
		return Decision{}, err
	}
	result, err := c.checks.join(ctx, body)
	switch {
	case err == nil:
		return result.decision()
	case c.fallback == nil || !errors.Is(err, ErrUnreachable):
		return Decision{}, err
	}
	return c.local(ctx, req, err), nil
}

// maxAnswer is how much of an answer is read. A thousand results with many limits each are smaller.
const maxAnswer = 8 << 20

// post sends a body, and returns the body of the answer. Without an answer of Weir, the error is an ErrUnreachable.
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
