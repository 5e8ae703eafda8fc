package admin

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/server/internal/observe/tail"
)

// events shows this node's decisions as they are made, as Server-Sent Events.
func (a *API) events(w http.ResponseWriter, r *http.Request) *jsonerror.Error {
	filter, f := eventFilter(r)
	if f != nil {
		return f
	}
	name := "" // everybody, on a port without tokens
	if a.Guard.Asks() {
		name = whoOf(r).Name
	}
	v, err := a.Tail.Watch(name, filter)
	if err != nil {
		f := jsonerror.New(http.StatusServiceUnavailable, jsonerror.Busy, "%v", err)
		f.Header = http.Header{"Retry-After": {"5"}}
		return f
	}
	defer v.Close()
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // a proxy in between must not collect them
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	s := &stream{w: w, control: http.NewResponseController(w)}
	s.add("pulse", v.Pulse()) // says that all is well, before the first decision
	ticks := time.NewTicker(tail.Every)
	defer ticks.Stop()
	for s.flush() {
		select {
		case d := <-v.Decisions():
			s.add("decision", d)
			for range len(v.Decisions()) {
				s.add("decision", <-v.Decisions())
			}
		case <-ticks.C:
			if _, refused := a.Guard.Admit(r); refused != nil { // its token was taken away, or its session has ended
				s.add("end", End{refused.Message})
				s.flush()
				return nil
			}
			s.add("pulse", v.Pulse())
		case <-a.Ending:
			s.add("end", End{"the node is ending"})
			s.flush()
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // it took too long to read
}

// End is the last event of a stream that the node ends.
type End struct {
	Text string `json:"text"`
}

// stream is a client that reads events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// unread is for how long a client may take nothing: then it is gone, or hangs.
const unread = 5 * time.Second

func (s *stream) add(event string, v any) { tail.Write(&s.buf, event, v) }

// flush sends what was added, and reports whether the client took it.
func (s *stream) flush() bool {
	_ = s.control.SetWriteDeadline(time.Now().Add(unread)) // in place of the port's own, which is for whole answers
	_, err := s.w.Write(s.buf.Bytes())
	s.buf.Reset()
	return err == nil && s.control.Flush() == nil
}

// eventFilter reads which decisions to show.
func eventFilter(r *http.Request) (f tail.Filter, _ *jsonerror.Error) {
	for name, values := range r.URL.Query() {
		value := values[0]
		if len(values) > 1 {
			return f, jsonerror.Bad("%s: is given twice: give it once", shown.Name(name))
		}
		if value == "" {
			continue
		}
		switch name {
		case "outcome":
			if value != "allowed" && value != "refused" {
				return f, jsonerror.Bad("outcome: must be allowed or refused")
			}
			f.Outcome = value
		case "rule":
			f.Rule = value
		case "edge":
			if !slices.Contains(observer.Edges[:], value) {
				return f, jsonerror.Bad("edge: must be one of %s", strings.Join(observer.Edges[:], ", "))
			}
			f.Edge = value
		case "client":
			n, err := strconv.ParseUint(value, 16, 32)
			if err != nil || len(value) != 8 {
				return f, jsonerror.Bad("client: must be a fingerprint as GET /v1/top shows them, such as 1a2b3c4d") // it may be somebody's key
			}
			f.Client, f.ByClient = uint32(n), true
		default:
			return f, jsonerror.Bad("there is no parameter %q: write outcome, rule, client or edge", shown.Name(name))
		}
	}
	return f, nil
}
