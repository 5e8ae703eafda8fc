// Package guard decides which callers may use a port of a node: with tokens, those that send one of
// them; without, all that reach the port, except a web page of another site that makes somebody's
// browser send requests.
package guard

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/memstore"
)

// Options of a Guard.
type Options struct {
	// Tokens that the port asks for. Browsers attach no bearer token by themselves, so a request that has a good
	// one is let in whatever else it says.
	Tokens Tokens
	// Name is the host name that the port was told to listen on, if that is a name. Beside it, the port may be called
	// localhost, or by an address.
	Name string
	// AnyName: the port isn't on loopback alone, so clients may know it by names that it was never told. Only
	// browsers are then held to the names above. All other clients may use any.
	AnyName bool
	// Console: the port has pages of its own, with sessions by cookie where it asks for tokens. Pages of other origins may not
	// even read, as far as browsers tell. Ports that gateways ask must let such requests in, since they carry the headers of
	// the gateway's client.
	Console bool
}

// Guard watches a port. It is safe for concurrent use.
type Guard struct {
	opts     Options
	tokens   atomic.Pointer[Tokens]
	sessions sessions
	cross    http.CrossOriginProtection
	store    *memstore.Store
	attempts *counter.Policy // bad tokens from one address
	repeated *counter.Policy // the same bad token again
	lines    lines
}

// memory bounds what a Guard remembers of bad tokens, in bytes.
const memory = 1 << 20

// New returns a Guard.
func New(opts Options) *Guard {
	g := &Guard{
		opts: opts, store: memstore.New(memstore.Options{MemoryCap: memory}),
		attempts: policy("attempts", 10, time.Minute), repeated: policy("repeated", 1, time.Hour),
	}
	g.tokens.Store(&opts.Tokens)
	return g
}

// SetTokens replaces the tokens that the port asks for. Sessions end whose token isn't among them. It must not be called with
// none where there were some: that would open the port.
func (g *Guard) SetTokens(ts Tokens) {
	g.tokens.Store(&ts)
	g.sessions.keep(ts)
}

func policy(name string, n int64, window time.Duration) *counter.Policy {
	p, err := counter.NewPolicy(name, counter.Limit{Count: n, Window: window})
	if err != nil {
		panic(err) // it is a constant
	}
	return p
}

// Who is behind a request.
type Who struct {
	Name string
	Role Role
	// Ends is when the session does by which the request was let in; zero without one.
	Ends time.Time
}

// Refusal says why a request isn't let in.
type Refusal struct {
	*jsonerror.Error
	Line
}

// Admit tells who sends a request, or why it is refused.
func (g *Guard) Admit(r *http.Request) (Who, *Refusal) {
	if g.Asks() {
		if g.opts.Console && len(r.Header["Authorization"]) == 0 && len(r.CookiesNamed(cookieName(r))) > 0 {
			return g.bySession(r)
		}
		t, refused := g.byToken(r, bearer(r))
		if refused != nil {
			return Who{}, refused
		}
		return Who{Name: t.name, Role: t.role}, nil
	}
	if message := g.foreign(r); message != "" {
		return Who{}, g.refuse(jsonerror.New(http.StatusForbidden, jsonerror.CrossSite, "%s", message))
	}
	return Who{Name: "local", Role: Operate}, nil
}

// Asks reports whether the port asks for tokens.
func (g *Guard) Asks() bool { return len(*g.tokens.Load()) > 0 }

// Digest is that of the port's tokens: see [Tokens.Digest].
func (g *Guard) Digest() []byte { return g.tokens.Load().Digest() }

// byToken lets in every caller with a good token, whatever others at the same address have tried.
// Bad tokens are throttled.
func (g *Guard) byToken(r *http.Request, secret string) (*token, *Refusal) {
	var room [128]byte // a token that is longer costs an allocation
	sum := sha256.Sum256(append(room[:0], secret...))
	if t := g.tokens.Load().find(&sum); t != nil && secret != "" {
		return t, nil
	}
	f := jsonerror.New(http.StatusUnauthorized, jsonerror.Unauthorized, "send a token of this node as Authorization: Bearer TOKEN")
	f.Header = http.Header{"Www-Authenticate": {`Bearer realm="weir"`}}
	if secret != "" {
		f.Message = "the token isn't one of this node's"
		from := network(r.RemoteAddr)
		wait := g.take(g.attempts, from, true)
		// A client that repeats an old token isn't guessing, and doesn't count against the others behind its address.
		if wait == 0 && g.take(g.repeated, from+string(sum[:]), false) == 0 {
			wait = g.take(g.attempts, from, false)
		}
		if wait > 0 {
			f.Status, f.Code = http.StatusTooManyRequests, jsonerror.TooManyAttempts
			f.Message = "too many bad tokens from this address: send a good one, which is let in, or wait " + wait.Round(time.Second).String()
			f.Header = http.Header{"Retry-After": {strconv.Itoa(int((wait + time.Second - 1) / time.Second))}}
		}
	}
	return nil, g.refuse(f)
}

func (g *Guard) refuse(why *jsonerror.Error) *Refusal { return &Refusal{why, g.Line("")} }

// Line says whether something is worth a line in the log.
type Line struct {
	Log     bool
	LeftOut int // so many before it weren't
}

// Line counts something that whoever has a name may do as often as they like. A hundred a minute are worth a line: more would let
// anybody fill the disk. All strangers together are "".
func (g *Guard) Line(name string) Line { return g.lines.take(name, time.Now()) }

// lines counts what was logged in a minute.
type lines struct {
	mu     sync.Mutex // guards byName
	byName map[string]lineCount
}

type lineCount struct {
	minute  int64
	n, left int
}

const maxLines = 100

func (l *lines) take(name string, now time.Time) Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string]lineCount{}
	}
	c := l.byName[name]
	if minute := now.Unix() / 60; minute != c.minute {
		c.minute, c.n = minute, 0
	}
	var out Line
	if c.n < maxLines {
		out = Line{true, c.left}
		c.n, c.left = c.n+1, 0
	} else {
		c.left++
	}
	l.byName[name] = c
	return out
}

func bearer(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// foreign says why a request may come from a page of another site, or "".
func (g *Guard) foreign(r *http.Request) string {
	if g.otherPage(r) {
		return otherPage
	}
	// A site can point its own name at this address (DNS rebinding). To the browser it is then the same origin, and only
	// the Host tells. Over TLS the browser has found that the certificate isn't the site's.
	if r.TLS != nil || g.opts.AnyName && !fromBrowser(r.Header) || g.known(r.Host) {
		return ""
	}
	return "call this port localhost or by its address, or give it a token: the Host " + strconv.Quote(r.Host) + " may be a name that another site has pointed here"
}

const otherPage = "a web page of another site may not do this; a service in between must not pass on its client's Origin and Sec-Fetch-… headers"

// otherPage: a browser says that a page of another origin sends the request. A port of that host counts as another.
func (g *Guard) otherPage(r *http.Request) bool {
	if g.opts.Console && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		as := *r
		as.Method = http.MethodPost // the check below lets every read pass
		r = &as
	}
	return g.cross.Check(r) != nil
}

// known: the name is this port's own, or one that no other site can point here.
func (g *Guard) known(host string) bool {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	if strings.EqualFold(host, "localhost") || g.opts.Name != "" && strings.EqualFold(host, g.opts.Name) {
		return true
	}
	if h, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(h, "]")
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// fromBrowser: browsers send an Origin with every request that isn't a GET or a HEAD, and newer ones Sec-Fetch-Site with all.
func fromBrowser(h http.Header) bool { return len(h["Origin"]) > 0 || len(h["Sec-Fetch-Site"]) > 0 }

// take counts something of a subject, or only looks, and returns how long to wait if there was too much of it.
func (g *Guard) take(p *counter.Policy, subject string, peek bool) time.Duration {
	charges := [1]counter.Charge{{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: 1, Peek: peek}}
	var results [1]counter.Result
	g.store.Take(context.Background(), charges[:], results[:])
	return results[0].RetryAfter
}

// network is what one client is taken to own of the address space: an IPv4 address, or an IPv6 /64.
func network(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote // not TCP
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
