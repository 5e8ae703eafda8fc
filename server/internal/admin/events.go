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

// events streams this node's decisions as Server-Sent Events.
func (a *API) events(r *call) (any, *jsonerror.Error) {
	filter, f := eventFilter(r)
	if f != nil {
		return nil, f
	}
	name := "" // without tokens, callers have no names
	if a.Guard.Asks() {
		name = r.who.Name
	}
	v, err := a.Tail.Watch(name, filter)
	if err != nil {
		return nil, retryLater(jsonerror.Busy, "5", "%v", err)
	}
	defer v.Close()
	header := r.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // a proxy must not buffer events
	r.w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil, nil
	}
	var buf bytes.Buffer
	control := http.NewResponseController(r.w)
	add := func(event string, v any) { tail.Write(&buf, event, v) }
	flush := func() bool {
		_ = control.SetWriteDeadline(time.Now().Add(unread)) // replaces the port's deadline, which is for ordinary responses
		_, err := buf.WriteTo(r.w)
		return err == nil && control.Flush() == nil
	}
	add("pulse", v.Pulse()) // shows the client that the stream works, even before the first decision
	ticks := time.NewTicker(tail.Every)
	defer ticks.Stop()
	for flush() {
		select {
		case d := <-v.Decisions():
			add("decision", d)
			for range len(v.Decisions()) {
				add("decision", <-v.Decisions())
			}
		case <-ticks.C:
			if _, refused := a.Guard.Admit(r.Request); refused != nil { // the token was removed, or the session has ended
				add("end", End{refused.Message})
				flush()
				return nil, nil
			}
			add("pulse", v.Pulse())
		case <-a.Ending:
			add("end", End{"the node is ending"})
			flush()
			return nil, nil
		case <-r.Context().Done():
			return nil, nil
		}
	}
	return nil, nil // the client has disconnected, or reads too slowly
}

// End is the last event of a stream that the node ends.
type End struct {
	Text string `json:"text"`
}

// unread is how long a write may block before the node assumes that the client is gone.
const unread = 5 * time.Second

func eventFilter(r *call) (f tail.Filter, _ *jsonerror.Error) {
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
				return f, jsonerror.Bad("client: must be a fingerprint as GET /v1/top shows them, such as 1a2b3c4d") // don't quote the value, because it may be a key
			}
			f.Client, f.ByClient = uint32(n), true
		default:
			return f, jsonerror.Bad("there is no parameter %q: write outcome, rule, client or edge", shown.Name(name))
		}
	}
	return f, nil
}
