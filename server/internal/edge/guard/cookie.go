package guard

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// cookiePrefix begins the names of all sessions' cookies.
const cookiePrefix = "weir_session"

// newCookie is a session's without its value. Over TLS no other connection may carry it; a proxy in front may speak TLS, which
// the browser tells by its Origin.
func newCookie(r *http.Request) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(r), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://"),
	}
}

// cookieName has the port in it, which browsers don't tell cookies apart by: two nodes on localhost would end each other's sessions.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		return cookiePrefix
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		return cookiePrefix + "_" + strconv.FormatUint(n, 10)
	}
	return cookiePrefix
}

// DropSessions takes the cookies of sessions out of a request's headers, and leaves every other byte of them. Browsers send
// a host's cookies to all of its ports, so a gateway beside the console gets them with what it forwards.
func DropSessions(h http.Header) {
	lines := h["Cookie"]
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, cookiePrefix) }) {
		return
	}
	var kept []string
	for _, line := range lines {
		if line = withoutSessions(line); line != "" {
			kept = append(kept, line)
		}
	}
	if h["Cookie"] = kept; kept == nil {
		delete(h, "Cookie")
	}
}

func withoutSessions(line string) string {
	var kept []string
	left := 0 // out so far
	for cookie := range strings.SplitSeq(line, ";") {
		bare := strings.TrimLeft(cookie, " \t")
		switch {
		case strings.HasPrefix(bare, cookiePrefix):
			left++
		case left > 0 && kept == nil: // the space was between it and the one before
			kept = append(kept, bare)
		default:
			kept = append(kept, cookie)
		}
	}
	return strings.Join(kept, ";")
}
