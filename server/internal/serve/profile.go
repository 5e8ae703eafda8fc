package serve

import (
	"context"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

// profiler serves profiles to operators, one at a time, since each slows the node down.
// net/http/pprof isn't used, because it shows the command line, where passwords and tokens may be,
// and lets profiles take any time and run in any number.
type profiler struct {
	turn chan struct{} // holds a value while a profile is being made
	over <-chan struct{}
}

func newProfiler(ctx context.Context) *profiler { return &profiler{make(chan struct{}, 1), ctx.Done()} }

// The longest and the default duration of a profile in seconds; the latter is what go tool pprof
// expects.
const (
	longestProfile = 60
	usualProfile   = 30
)

// profiles are the snapshots. For the others, which take time, see timed.
var profiles = []string{"allocs", "goroutine", "heap", "threadcreate"}

// timed profiles record the node for a while.
var timed = map[string]struct {
	start func(w http.ResponseWriter) error
	stop  func()
}{
	"profile": {func(w http.ResponseWriter) error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile},
	"trace":   {func(w http.ResponseWriter) error { return trace.Start(w) }, trace.Stop},
}

func (p *profiler) serve(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	name := r.PathValue("profile")
	recorder, takesTime := timed[name]
	if !takesTime && !slices.Contains(profiles, name) {
		return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is no such profile: try profile, trace, %s", strings.Join(profiles, ", "))
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
	w.Header().Set("Content-Type", "application/octet-stream")
	if debug > 0 && !takesTime {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !takesTime {
		_ = pprof.Lookup(name).WriteTo(w, debug) // the client may have left
		return nil
	}
	// The port's deadlines are for answers that come at once. Without this, the request would count
	// as abandoned.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Now().Add(time.Duration(seconds)*time.Second + bodyTimeout))
	if err := recorder.start(w); err != nil {
		return jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "it can't be made now: %v", err)
	}
	defer recorder.stop()
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	case <-p.over: // what was recorded so far is an answer, too
	}
	return nil
}

// number reads a parameter.
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
