package serve

import (
	"context"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// profiler serves profiles to operators, one at a time, since each slows the node down.
type profiler struct {
	turn   chan struct{}   // has a value in it while a profile is being made
	ending context.Context // done when the node shuts down
}

func newProfiler(ctx context.Context) *profiler { return &profiler{make(chan struct{}, 1), ctx} }

// longestProfile and usualProfile are the longest and the default duration of a profile, in
// seconds. go tool pprof expects the latter.
const (
	longestProfile = 60
	usualProfile   = 30
)

// profiles are snapshots. Other handlers of net/http/pprof aren't served, because one shows the
// command line, which may contain passwords and tokens.
var profiles = map[string]http.Handler{
	"allocs": pprof.Handler("allocs"), "goroutine": pprof.Handler("goroutine"),
	"heap": pprof.Handler("heap"), "threadcreate": pprof.Handler("threadcreate"),
}

// recordings are profiles over the requested number of seconds.
var recordings = map[string]http.HandlerFunc{"profile": pprof.Profile, "trace": pprof.Trace}

func (p *profiler) serve(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	name := r.PathValue("profile")
	profile, recording := profiles[name], recordings[name]
	if profile == nil && recording == nil {
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
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	default:
		f := jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "another profile is being made: try again when it is done")
		f.Header = http.Header{"Retry-After": {"5"}}
		return f
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.ending, cancel)() // what was recorded before the shutdown is still sent
	r = r.WithContext(ctx)
	if profile != nil {
		r.Form = url.Values{"debug": {strconv.Itoa(debug)}}
		profile.ServeHTTP(w, r)
		return nil
	}
	// Lift the port's read deadline: when it passes, net/http would treat the request as abandoned.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	r.Form = url.Values{"seconds": {strconv.Itoa(seconds)}}
	recording(w, r)
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
