package guard

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// A session stands for a token in a browser. It needs two secrets: a cookie, which scripts can't read, and a proof,
// which the port's pages send in a header. A service on another port of the host could steal the cookie or set its own,
// and a script that is injected into a page could steal the proof, but neither gets both secrets. The node keeps
// sessions in memory, by the hash of both secrets.

const (
	// sessionLife is how long a session lasts, whether or not it is used: a working day.
	sessionLife = 12 * time.Hour
	// maxSessions is the maximum number of sessions of one token. One more login ends the oldest session.
	maxSessions = 32
	// proofHeader is the header with the proof. Pages of other origins can't send it without a preflight.
	proofHeader = "X-Weir-Session"
)

type session struct {
	token [sha256.Size]byte // hash of the token, which must still be valid
	host  string            // the host name that the browser used for the node at login
	ends  time.Time
}

type sessions struct {
	mu   sync.Mutex // guards byID
	byID map[[sha256.Size]byte]session
}

// sessionID returns the key of a session. The secrets contain no newlines.
func sessionID(cookie, proof string) [sha256.Size]byte {
	return sha256.Sum256([]byte(cookie + "\n" + proof))
}

// begin starts a session.
func (s *sessions) begin(id [sha256.Size]byte, begun session) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[[sha256.Size]byte]session{}
	}
	maps.DeleteFunc(s.byID, func(_ [sha256.Size]byte, old session) bool { return !now.Before(old.ends) })
	var oldest [sha256.Size]byte
	count := 0
	for id, other := range s.byID {
		if other.token != begun.token {
			continue
		}
		if count++; count == 1 || other.ends.Before(s.byID[oldest].ends) {
			oldest = id
		}
	}
	if count >= maxSessions {
		delete(s.byID, oldest)
	}
	s.byID[id] = begun
}

// of returns the session of a request. Services on other ports of the host may have set cookies with the same name, so
// it returns the session whose proof was sent.
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

func (s *sessions) end(r *http.Request) {
	ids := sessionIDs(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.byID, id)
	}
}

func sessionIDs(r *http.Request) (ids [][sha256.Size]byte) {
	for _, c := range r.CookiesNamed(cookieName(r)) {
		ids = append(ids, sessionID(c.Value, r.Header.Get(proofHeader)))
	}
	return ids
}

// keep ends the sessions of all tokens that aren't in ts. The sessions don't come back if a token is added again later.
func (s *sessions) keep(ts Tokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byID, func(_ [sha256.Size]byte, old session) bool { return ts.find(&old.token) == nil })
}

// Login starts a session for a caller with a valid token, and sets the session's cookie. proof is the session's other
// secret. It is "" if the port requires no token. A bad token is throttled like a bad bearer token.
func (g *Guard) Login(w http.ResponseWriter, r *http.Request, secret string) (proof string, who Who, refused *jsonerror.Error) {
	if !g.Asks() {
		who, refused = g.Admit(r)
		return "", who, refused
	}
	if g.otherPage(r) {
		return "", who, crossSite(otherPage)
	}
	t, refused := g.byToken(r.RemoteAddr, strings.TrimSpace(secret))
	if refused != nil {
		return "", who, refused
	}
	g.sessions.end(r) // the browser replaces the old session's cookie, so end that session
	cookie, ends := newCookie(r), time.Now().Add(sessionLife)
	cookie.Value, cookie.MaxAge = rand.Text()+rand.Text(), int(sessionLife/time.Second) // 260 bits, as many as the proof has
	proof = rand.Text() + rand.Text()
	g.sessions.begin(sessionID(cookie.Value, proof), session{t.sum, r.Host, ends})
	http.SetCookie(w, cookie)
	return proof, Who{t.name, t.role, ends}, nil
}

// Logout ends the session of a request, if there is one, and makes the browser delete its cookie.
func (g *Guard) Logout(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	if g.otherPage(r) {
		return crossSite(otherPage)
	}
	g.sessions.end(r)
	cookie := newCookie(r)
	cookie.MaxAge = -1
	http.SetCookie(w, cookie)
	return nil
}

// bySession admits a request of the port's own pages by its cookie and its proof. It also checks the request's origin.
func (g *Guard) bySession(r *http.Request) (Who, *jsonerror.Error) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if g.otherPage(r) || !reads && !fromBrowser(r.Header) {
		return Who{}, crossSite("a session is for the pages of this port: a request that changes something needs their Origin or Sec-Fetch-Site; programs send a token as Authorization: Bearer TOKEN")
	}
	if s, ok := g.sessions.of(r); ok && s.host == r.Host { // require the host of the login: another name may have been pointed at this node since then
		if t := g.tokens.Load().find(&s.token); t != nil {
			return Who{t.name, t.role, s.ends}, nil
		}
	}
	return Who{}, jsonerror.New(http.StatusUnauthorized, jsonerror.Unauthorized, "the session has ended, or %s isn't what its login answered: log in again", proofHeader)
}

const cookiePrefix = "weir_session"

// newCookie returns a session cookie without a value. The cookie is Secure if the browser uses TLS, even if a proxy
// ends the TLS connection.
func newCookie(r *http.Request) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(r), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://"),
	}
}

// cookieName returns a name that includes the port, because browsers send cookies to all ports of a host. Otherwise two
// nodes on localhost would end each other's sessions.
func cookieName(r *http.Request) string {
	port, err := strconv.ParseUint((&url.URL{Host: r.Host}).Port(), 10, 16)
	if err != nil {
		return cookiePrefix
	}
	return cookiePrefix + "_" + strconv.FormatUint(port, 10)
}

// DropSessions removes session cookies from a request's headers, and doesn't change any other byte. Browsers also send
// these cookies to a gateway on another port of the same host.
func DropSessions(h http.Header) {
	lines := h["Cookie"]
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, cookiePrefix) }) {
		return
	}
	delete(h, "Cookie")
	for _, line := range lines {
		if line = withoutSessions(line); line != "" {
			h["Cookie"] = append(h["Cookie"], line)
		}
	}
}

func withoutSessions(line string) string {
	ours := func(cookie string) bool { return strings.HasPrefix(strings.TrimLeft(cookie, " \t"), cookiePrefix) }
	kept := strings.Join(slices.DeleteFunc(strings.Split(line, ";"), ours), ";")
	if ours(line) { // remove the space between a removed cookie and the first one that is kept
		kept = strings.TrimLeft(kept, " \t")
	}
	return kept
}
