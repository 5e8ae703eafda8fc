package serve

import (
	"context"
	"net/http"
	"net/http/pprof"
	"time"
)

// profiles serves the profiles of net/http/pprof, except the command line, which may contain passwords. When the node
// shuts down, recordings end early, and their results are sent.
func profiles(ending context.Context) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(ending, cancel)()
		// Remove the port's read deadline: when it passes, net/http would treat the request as abandoned.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		r = r.WithContext(ctx)
		switch name := r.PathValue("profile"); name {
		case "profile":
			pprof.Profile(w, r)
		case "trace":
			pprof.Trace(w, r)
		default:
			pprof.Handler(name).ServeHTTP(w, r)
		}
	}
}
