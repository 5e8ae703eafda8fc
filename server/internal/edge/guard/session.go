package guard

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// A session stands for a token in a browser. Using it takes two secrets: a cookie, which no script can read, and a proof, which the
// port's pages keep and send as a header. The cookie alone isn't enough, since browsers send it to every port of the host, and let
// every port set it: what else listens there can steal one, or foist its own on somebody. The proof alone isn't either: a script that
// got into a page could take it away.
//
// Sessions are in the node's memory, by the hash of both, and end with it.

const (
	// sessionLife is how long one lasts, used or not: a working day.
	sessionLife = 12 * time.Hour
	// maxSessions of one token. A further one ends the oldest: whoever has a token can't log the others out.
	maxSessions = 32
	// proofHeader is where a page sends the proof. Pages of other origins can't send it: they would have to ask first, in a preflight.
	proofHeader = "X-Weir-Session"
)

type session struct {
	token [sha256.Size]byte // the sum of its token, which must still be one
	host  string            // that the browser called the node by, when it began
	ends  time.Time
}

type sessions struct {
	mu   sync.Mutex // guards byID
	byID map[[sha256.Size]byte]session
}

// sessionID is what a session is kept by. Neither part of it has a line's end in it.
func sessionID(cookie, proof string) [sha256.Size]byte {
	return sha256.Sum256([]byte(cookie + "\n" + proof))
}

// begin returns the secrets of a new session, and when it ends.
func (s *sessions) begin(token [sha256.Size]byte, host string) (cookie, proof string, ends time.Time) {
	cookie, proof = rand.Text()+rand.Text(), rand.Text()+rand.Text() // 260 bits each
	now := time.Now()
	ends = now.Add(sessionLife)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[[sha256.Size]byte]session{}
	}
	maps.DeleteFunc(s.byID, func(_ [sha256.Size]byte, old session) bool { return !now.Before(old.ends) })
	var oldest [sha256.Size]byte
	count := 0
	for id, other := range s.byID {
		if other.token != token {
			continue
		}
		if count++; count == 1 || other.ends.Before(s.byID[oldest].ends) {
			oldest = id
		}
	}
	if count >= maxSessions {
		delete(s.byID, oldest)
	}
	s.byID[sessionID(cookie, proof)] = session{token, host, ends}
	return cookie, proof, ends
}

// of returns the session of a request. Of several cookies, which other ports of the host may have set, it is the one that the proof
// is for.
func (s *sessions) of(r *http.Request) (found session, ok bool) {
	ids := sessionIDs(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if found, ok = s.byID[id]; ok && time.Now().Before(found.ends) {
			return found, true
		}
	}
	return session{}, false
}

// end ends the session of a request, if it has one.
func (s *sessions) end(r *http.Request) {
	ids := sessionIDs(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.byID, id)
	}
}

// sessionIDs are those that a request may have.
func sessionIDs(r *http.Request) (ids [][sha256.Size]byte) {
	for _, c := range r.CookiesNamed(cookieName(r)) {
		ids = append(ids, sessionID(c.Value, r.Header.Get(proofHeader)))
	}
	return ids
}

// keep ends the sessions whose token isn't among these: also for the case that it comes back.
func (s *sessions) keep(ts Tokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byID, func(_ [sha256.Size]byte, old session) bool { return ts.find(&old.token) == nil })
}

// Begun is what a browser is given to use a new session with. Both are secrets.
type Begun struct {
	Cookie *http.Cookie
	Proof  string
}

// Login begins a session for a caller with a good token. It is nil on a port that asks for none. A bad token counts as one that was
// sent as a bearer.
func (g *Guard) Login(r *http.Request, secret string) (*Begun, Who, *Refusal) {
	if !g.Asks() {
		who, refused := g.Admit(r)
		return nil, who, refused
	}
	if g.otherPage(r) {
		return nil, Who{}, g.refuse(jsonerror.New(http.StatusForbidden, jsonerror.CrossSite, "%s", otherPage))
	}
	t, refused := g.byToken(r, strings.TrimSpace(secret))
	if refused != nil {
		return nil, Who{}, refused
	}
	g.sessions.end(r) // the browser forgets it
	value, proof, ends := g.sessions.begin(t.sum, r.Host)
	cookie := newCookie(r)
	cookie.Value, cookie.MaxAge = value, int(sessionLife/time.Second)
	return &Begun{cookie, proof}, Who{t.name, t.role, ends}, nil
}

// Logout ends the session of a request, if it has one, and returns what has the browser forget its cookie.
func (g *Guard) Logout(r *http.Request) (*http.Cookie, *Refusal) {
	if g.otherPage(r) {
		return nil, g.refuse(jsonerror.New(http.StatusForbidden, jsonerror.CrossSite, "%s", otherPage))
	}
	g.sessions.end(r)
	cookie := newCookie(r)
	cookie.MaxAge = -1
	return cookie, nil
}

// bySession lets in a page of this port by its cookie and its proof. What browsers say of a request's origin is looked at all the same.
func (g *Guard) bySession(r *http.Request) (Who, *Refusal) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if g.otherPage(r) || !reads && !fromBrowser(r.Header) {
		return Who{}, g.refuse(jsonerror.New(http.StatusForbidden, jsonerror.CrossSite,
			"a session is for the pages of this port: a request that changes something needs their Origin or Sec-Fetch-Site; programs send a token as Authorization: Bearer TOKEN"))
	}
	if s, ok := g.sessions.of(r); ok && s.host == r.Host { // the cookie may have been set for another name, which was pointed here since
		if t := g.tokens.Load().find(&s.token); t != nil {
			return Who{t.name, t.role, s.ends}, nil
		}
	}
	return Who{}, g.refuse(jsonerror.New(http.StatusUnauthorized, jsonerror.Unauthorized,
		"the session has ended, or "+proofHeader+" isn't what its login answered: log in again"))
}
