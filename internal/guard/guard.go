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
	"time"

	"github.com/weirhq/weir"
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
}

// Guard watches a port. It is safe for concurrent use.
type Guard struct {
	opts     Options
	cross    http.CrossOriginProtection
	store    *memstore.Store
	attempts *weir.Policy // bad tokens from one address
	repeated *weir.Policy // the same bad token again
	lines    lines
}

// memory bounds what a Guard remembers of bad tokens, in bytes.
const memory = 1 << 20

// New returns a Guard.
func New(opts Options) *Guard {
	return &Guard{
		opts: opts, store: memstore.New(memstore.Options{MemoryCap: memory}),
		attempts: policy("attempts", 10, time.Minute), repeated: policy("repeated", 1, time.Hour),
	}
}

func policy(name string, n int64, window time.Duration) *weir.Policy {
	p, err := weir.NewPolicy(name, weir.Limit{Count: n, Window: window})
	if err != nil {
		panic(err) // it is a constant
	}
	return p
}

// Who is behind a request.
type Who struct {
	Name string
	Role Role
}

// Refusal says why a request isn't let in.
type Refusal struct {
	*jsonerror.Error
	// Log: it is worth a line. A hundred a minute are, of all strangers together: more would let anybody fill the disk.
	Log bool
}

// Admit tells who sends a request, or why it is refused.
func (g *Guard) Admit(r *http.Request) (Who, *Refusal) {
	if len(g.opts.Tokens) > 0 {
		return g.byToken(r)
	}
	if message := g.foreign(r); message != "" {
		return Who{}, g.refuse(jsonerror.New(http.StatusForbidden, jsonerror.CrossSite, "%s", message))
	}
	return Who{"local", Operate}, nil
}

// Asks reports whether the port asks for tokens.
func (g *Guard) Asks() bool { return len(g.opts.Tokens) > 0 }

// byToken lets in every caller with a good token, whatever others at the same address have tried.
// Bad tokens are throttled.
func (g *Guard) byToken(r *http.Request) (Who, *Refusal) {
	secret := bearer(r)
	var room [128]byte // a token that is longer costs an allocation
	sum := sha256.Sum256(append(room[:0], secret...))
	if t := g.opts.Tokens.find(&sum); t != nil && secret != "" {
		return Who{t.name, t.role}, nil
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
	return Who{}, g.refuse(f)
}

func (g *Guard) refuse(why *jsonerror.Error) *Refusal {
	return &Refusal{why, g.lines.take(time.Now())}
}

// lines counts the refusals that were logged in a minute.
type lines struct {
	mu     sync.Mutex // guards the fields below
	minute int64
	n      int
}

const maxLines = 100

func (l *lines) take(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if minute := now.Unix() / 60; minute != l.minute {
		l.minute, l.n = minute, 0
	}
	l.n++
	return l.n <= maxLines
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
	if g.cross.Check(r) != nil {
		return "a web page of another site may not do this; a service in between must not pass on its client's Origin and Sec-Fetch-… headers"
	}
	// A site can point its own name at this address (DNS rebinding). To the browser it is then the same origin, and only
	// the Host tells. Over TLS the browser has found that the certificate isn't the site's.
	if r.TLS != nil || g.opts.AnyName && !fromBrowser(r.Header) || g.known(r.Host) {
		return ""
	}
	return "call this port localhost or by its address, or give it a token: the Host " + strconv.Quote(r.Host) + " may be a name that another site has pointed here"
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
func (g *Guard) take(p *weir.Policy, subject string, peek bool) time.Duration {
	charges := [1]weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte(subject)}, N: 1, Peek: peek}}
	var results [1]weir.Result
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
