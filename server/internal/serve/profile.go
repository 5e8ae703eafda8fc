package serve

import (
	"context"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// profiler serves profiles to operators, one at a time, since each slows the node down.
type profiler struct {
	turn   sync.Mutex      // held while a profile is being made
	ending context.Context // done when the node shuts down
}

// The longest and the default duration of a profile, in seconds. go tool pprof expects the latter.
const (
	longestProfile = 60
	usualProfile   = 30
)

// profiles are snapshots, and recordings over some seconds. Other handlers of net/http/pprof aren't served, because one
// shows the command line, which may contain passwords and tokens.
var profiles = map[string]http.Handler{
	"allocs": pprof.Handler("allocs"), "goroutine": pprof.Handler("goroutine"), "heap": pprof.Handler("heap"), "threadcreate": pprof.Handler("threadcreate"),
	"profile": http.HandlerFunc(pprof.Profile), "trace": http.HandlerFunc(pprof.Trace),
}

func (p *profiler) serve(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	name := r.PathValue("profile")
	profile, recording := profiles[name], name == "profile" || name == "trace"
	if profile == nil {
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is no such profile: try profile, trace, allocs, goroutine, heap, threadcreate")
	}
	seconds, f := number(r, "seconds", usualProfile, 1, longestProfile)
	if f != nil {
		return f
	}
	debug, f := number(r, "debug", 0, 0, 2)
	if f != nil {
		return f
	}
	if !p.turn.TryLock() {
		f := jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "another profile is being made: try again when it is done")
		f.Header = http.Header{"Retry-After": {"5"}}
		return f
	}
	defer p.turn.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.ending, cancel)() // what was recorded before the shutdown is still sent
	r = r.WithContext(ctx)
	r.Form = url.Values{"debug": {strconv.Itoa(debug)}}
	if recording {
		r.Form = url.Values{"seconds": {strconv.Itoa(seconds)}}
		// Lift the port's read deadline: when it passes, net/http would treat the request as abandoned.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	profile.ServeHTTP(w, r)
	return nil
}

func number(r *http.Request, name string, usual, least, most int) (int, *jsonerror.Error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, jsonerror.Bad("%s must be a whole number from %d to %d", name, least, most)
	}
	return n, nil
}
