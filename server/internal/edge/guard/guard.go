// Package guard decides which callers may use a port of a node. If the port requires tokens, callers must send one.
// Otherwise everybody who can reach the port may use it, except web pages of other sites, which can make a visitor's
// browser send requests.
package guard

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge"
)

// Options are the options of a Guard.
type Options struct {
	// Tokens are the tokens that the port accepts. A request with a valid token is admitted whatever its other headers
	// are, because browsers don't add bearer tokens by themselves.
	Tokens Tokens
	// Name is the host name that the port listens on, if it listens on a name. Clients may also address the port as
	// localhost or by an IP address.
	Name string
	// AnyName means that clients other than browsers may use any host name for the port.
	AnyName bool
	// Console means that the port serves the console and, if it requires tokens, has cookie sessions. Pages of other
	// origins then can't even send GET requests.
	Console bool
}

// Guard protects a port. It is safe for concurrent use.
type Guard struct {
	opts     Options
	tokens   atomic.Pointer[Tokens]
	sessions sessions
	cross    http.CrossOriginProtection
	store    *memstore.Store
	attempts *counter.Policy  // limits the bad tokens from one address
	repeated *counter.Policy  // limits how often one bad token is counted
	linesMu  sync.Mutex       // guards lines
	lines    map[string]lines // by the name of the caller
}

// memory is the maximum number of bytes in which a Guard remembers bad tokens.
const memory = 1 << 20

// New creates a Guard.
func New(opts Options) *Guard {
	g := &Guard{
		opts: opts, store: memstore.New(memstore.Options{MemoryCap: memory}), lines: map[string]lines{},
		attempts: policy("attempts", 10, time.Minute), repeated: policy("repeated", 1, time.Hour),
	}
	g.tokens.Store(&opts.Tokens)
	return g
}

// SetTokens replaces the tokens that the port accepts. It ends the sessions of removed tokens. An empty list would open
// the port to everybody.
func (g *Guard) SetTokens(ts Tokens) {
	g.tokens.Store(&ts)
	g.sessions.keep(ts)
}

func policy(name string, n int64, window time.Duration) *counter.Policy {
	p, err := counter.NewPolicy(name, counter.Limit{Count: n, Window: window})
	if err != nil {
		panic(err) // can't happen: the constants are valid
	}
	return p
}

// Who identifies the caller that sent a request.
type Who struct {
	Name string
	Role Role
	// Ends is when the caller's session ends, or zero if the request has no session.
	Ends time.Time
}

// Admit returns the caller that sent a request. If the request is refused, it returns an error.
func (g *Guard) Admit(r *http.Request) (Who, *jsonerror.Error) {
	if g.Asks() {
		if g.opts.Console && len(r.Header["Authorization"]) == 0 && len(r.CookiesNamed(cookieName(r))) > 0 {
			return g.bySession(r)
		}
		t, refused := g.byToken(r.RemoteAddr, bearer(r))
		if refused != nil {
			return Who{}, refused
		}
		return Who{Name: t.name, Role: t.role}, nil
	}
	if message := g.foreign(r); message != "" {
		return Who{}, crossSite(message)
	}
	return Who{Name: "local", Role: Operate}, nil
}

// Asks reports whether the port requires a token.
func (g *Guard) Asks() bool { return len(*g.tokens.Load()) > 0 }

// Digest returns the digest of the port's tokens: see [Tokens.Digest].
func (g *Guard) Digest() []byte { return g.tokens.Load().Digest() }

// AdmitToken returns nil if a caller with this token is admitted, and otherwise an error. The port must require tokens.
func (g *Guard) AdmitToken(remote, secret string) *jsonerror.Error {
	_, refused := g.byToken(remote, strings.TrimSpace(secret))
	return refused
}

// byToken admits every caller with a valid token, even if bad tokens have come from the caller's address. It throttles
// bad tokens.
func (g *Guard) byToken(remote, secret string) (*token, *jsonerror.Error) {
	var room [128]byte // avoids an allocation for tokens of usual length
	sum := sha256.Sum256(append(room[:0], secret...))
	if t := g.tokens.Load().find(&sum); t != nil && secret != "" {
		return t, nil
	}
	f := jsonerror.New(http.StatusUnauthorized, jsonerror.Unauthorized, "send a token of this node as Authorization: Bearer TOKEN")
	f.Header = http.Header{"Www-Authenticate": {`Bearer realm="weir"`}}
	if secret != "" {
		f.Message = "this isn't a token of this node"
		from := network(remote)
		wait := g.take(g.attempts, from, true)
		// A caller that sends the same bad token again isn't guessing. So a token counts against the address, which
		// several callers may share, only the first time.
		if wait == 0 && g.take(g.repeated, from+string(sum[:]), false) == 0 {
			wait = g.take(g.attempts, from, false)
		}
		if wait > 0 {
			f.Status, f.Code = http.StatusTooManyRequests, jsonerror.TooManyAttempts
			f.Message = "too many bad tokens from this address: send a good one, which is let in, or wait " + wait.Round(time.Second).String()
			f.Header = http.Header{"Retry-After": {strconv.Itoa(int((wait + time.Second - 1) / time.Second))}}
		}
	}
	return nil, f
}

func crossSite(message string) *jsonerror.Error {
	return jsonerror.New(http.StatusForbidden, jsonerror.CrossSite, "%s", message)
}

// lines counts, for one minute, the lines that were logged, and those left out since the last line.
type lines struct {
	minute  int64
	n, left int
}

const maxLines = 100

// Line reports whether an event that a caller can repeat at will should be logged. A hundred events a minute are logged
// for each name, so that no caller can fill the disk. leftOut is how many events were left out since the last one that
// was logged. All callers without a name share the name "".
func (g *Guard) Line(name string) (log bool, leftOut int) {
	g.linesMu.Lock()
	defer g.linesMu.Unlock()
	c := g.lines[name]
	if minute := time.Now().Unix() / 60; minute != c.minute {
		c.minute, c.n = minute, 0
	}
	if log = c.n < maxLines; log {
		leftOut = c.left
		c.n, c.left = c.n+1, 0
	} else {
		c.left++
	}
	g.lines[name] = c
	return log, leftOut
}

func bearer(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// foreign returns a text that says why a request may come from a page of another site, or "".
func (g *Guard) foreign(r *http.Request) string {
	if g.otherPage(r) {
		return otherPage
	}
	// A site can point its own name at this address (DNS rebinding). The browser then treats the site and this port as
	// one origin, and only the Host header shows the difference. With TLS, the browser has checked that the certificate
	// is valid for the name.
	if r.TLS != nil || g.opts.AnyName && !fromBrowser(r.Header) || g.known(r.Host) {
		return ""
	}
	return "call this port localhost or by its address, or give it a token: the Host " + strconv.Quote(r.Host) + " may be a name that another site has pointed here"
}

const otherPage = "a web page of another site may not do this; a service in between must not pass on its client's Origin and Sec-Fetch-… headers"

// otherPage reports whether the browser says that a page of another origin sent the request. A different port of the
// same host is another origin.
func (g *Guard) otherPage(r *http.Request) bool {
	if g.opts.Console && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		as := *r
		as.Method = http.MethodPost // CrossOriginProtection admits all GET requests
		r = &as
	}
	return g.cross.Check(r) != nil
}

// known reports whether a host is this port's own name, or one that another site can't point at this address.
func (g *Guard) known(host string) bool {
	host = (&url.URL{Host: host}).Hostname()
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost") || g.opts.Name != "" && strings.EqualFold(host, g.opts.Name)
}

// fromBrowser reports whether a browser sent a request. Browsers send the header Origin, except with GET and HEAD, and
// newer ones send Sec-Fetch-Site.
func fromBrowser(h http.Header) bool { return len(h["Origin"]) > 0 || len(h["Sec-Fetch-Site"]) > 0 }

// take counts an event and returns how long to wait if there were too many. If peek is set, it doesn't count the event.
func (g *Guard) take(p *counter.Policy, subject string, peek bool) time.Duration {
	charges := [1]counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: 1, Peek: peek}}
	var results [1]counter.Result
	g.store.Take(context.Background(), charges[:], results[:])
	return results[0].RetryAfter
}

// network returns the network of a peer's address. All addresses in it count as one client.
func network(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote // not TCP
	}
	return edge.Network(at.Addr()).String()
}
