package admin

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// guard lets in who may come in: with a good token, if there are any, and in no case a page of another site that
// makes a browser send requests.
type guard struct {
	tokens   Tokens
	log      *slog.Logger
	cross    *http.CrossOriginProtection
	store    *memstore.Store
	attempts *weir.Policy // bad tokens from one address
	repeated *weir.Policy // the same one again
}

func newGuard(tokens Tokens, log *slog.Logger) *guard {
	policy := func(name string, n int64, window time.Duration) *weir.Policy {
		p, err := weir.NewPolicy(name, weir.Limit{Count: n, Window: window})
		if err != nil {
			panic(err) // it is a constant
		}
		return p
	}
	return &guard{
		tokens: tokens, log: log, cross: http.NewCrossOriginProtection(), store: memstore.New(memstore.Options{MemoryCap: 1 << 20}),
		attempts: policy("attempts", 10, time.Minute), repeated: policy("repeated", 1, time.Hour),
	}
}

// who is behind a request.
type who struct {
	name string
	role Role
}

type whoKey struct{}

func whoOf(r *http.Request) who {
	w, _ := r.Context().Value(whoKey{}).(who)
	return w
}

// wrap lets requests through to who may answer them. What changes nothing may be looked at.
func (g *guard) wrap(route Route, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		role := route.Role
		if dry, err := flag(r, "dry_run"); route.rules && dry && err == nil {
			role = Read
		}
		who, f := g.admit(r, role)
		if f != nil {
			g.log.Warn("admin: refused", "who", who.name, "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "why", f.code)
			f.write(w)
			return
		}
		h(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
	}
}

// admit tells who it is that may pass, or why it may not.
func (g *guard) admit(r *http.Request, role Role) (who, *fault) {
	if err := g.cross.Check(r); err != nil {
		return who{}, newFault(http.StatusForbidden, "CROSS_SITE", "a page of another site may not do this")
	}
	if len(g.tokens) == 0 {
		if !local(r.Host) {
			return who{}, newFault(http.StatusForbidden, "CROSS_SITE",
				"without tokens the port is for localhost and addresses: the Host %q may be a name that another site has pointed here", r.Host)
		}
		return who{"local", Operate}, nil
	}
	if wait := g.take(g.attempts, r, "", true); wait > 0 {
		f := newFault(http.StatusTooManyRequests, "TOO_MANY_ATTEMPTS", "too many bad tokens from this address: try again in %s", wait.Round(time.Second))
		f.header = http.Header{"Retry-After": {strconv.Itoa(int((wait + time.Second - 1) / time.Second))}}
		return who{}, f
	}
	secret := bearer(r)
	t, ok := g.tokens.find(secret)
	switch {
	case !ok || secret == "":
		f := newFault(http.StatusUnauthorized, "UNAUTHORIZED", "send a token of this node as Authorization: Bearer TOKEN")
		if secret != "" {
			// Who repeats an old one guesses nothing, and shall not lock out the others behind its address.
			if sum := sha256.Sum256([]byte(secret)); g.take(g.repeated, r, string(sum[:]), false) == 0 {
				g.take(g.attempts, r, "", false)
			}
			f.message = "the token isn't one of this node's"
		}
		f.header = http.Header{"Www-Authenticate": {`Bearer realm="weir"`}}
		return who{}, f
	case t.role < role:
		return who{t.name, t.role}, newFault(http.StatusForbidden, "FORBIDDEN", "the token of %s may only read", t.name)
	}
	return who{t.name, t.role}, nil
}

func bearer(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// local: nobody's name service can point it elsewhere.
func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// take counts something of an address, or only looks, and returns how long it has to wait if there was too much of it.
func (g *guard) take(p *weir.Policy, r *http.Request, what string, peek bool) time.Duration {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = r.RemoteAddr
	}
	charges := [1]weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte(from + " " + what)}, N: 1, Peek: peek}}
	var results [1]weir.Result
	g.store.Take(r.Context(), charges[:], results[:])
	return results[0].RetryAfter
}

// fault is an answer that isn't the one that was wanted.
type fault struct {
	status  int
	code    string
	message string
	details any
	header  http.Header
}

func newFault(status int, code, format string, args ...any) *fault {
	return &fault{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func (f *fault) Error() string { return f.message }

func (f *fault) write(w http.ResponseWriter) {
	for name, values := range f.header {
		w.Header()[name] = values
	}
	body := map[string]any{"code": f.code, "message": f.message}
	if f.details != nil {
		body["details"] = f.details
	}
	WriteJSON(w, f.status, map[string]any{"error": body})
}
