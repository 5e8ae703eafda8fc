package gateway

import (
	"net/http"
	"time"
)

// What a server that faces strangers grants them.
const (
	// ReadHeaderTimeout is how long a request's headers, or a TLS handshake, may take to arrive.
	ReadHeaderTimeout = 5 * time.Second
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout = 120 * time.Second
	// MaxHeaderBytes is how long a request's headers may be, give or take the 4 KiB that net/http adds. More gets 431.
	MaxHeaderBytes = 16 << 10
	// MaxStreams is how many requests at a time one HTTP/2 connection may have.
	MaxStreams = 250
)

// NewServer prepares a server for strangers: slow or huge headers, idle
// connections and HTTP/2 streams are bounded. The time for bodies and answers is
// not, since those may stream for hours: a Gateway watches for clients that
// stall by itself, other handlers should set deadlines where they read bodies.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: ReadHeaderTimeout,
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
		// net/http would answer OPTIONS * with 200 by itself, past the handler and its limits.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: MaxStreams,
			// A connection over which streams are open is never idle; one whose client vanished is found out by a ping.
			SendPingTimeout:  30 * time.Second,
			WriteByteTimeout: 60 * time.Second,
		},
	}
}
