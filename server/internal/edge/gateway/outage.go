package gateway

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// outageReport is how often the log says that the upstream goes on failing.
const outageReport = time.Minute

// outage logs an upstream that fails: at once, then how many requests failed in each minute,
// until a minute passes without one. A busy gateway would bury everything else in a line for each.
type outage struct {
	log     *slog.Logger
	message string
	open    atomic.Bool // it failed, and has not answered since

	mu     sync.Mutex  // guards what follows
	timer  *time.Timer // to the next report; nil while there is nothing to report
	failed int         // requests since the last line
	last   []slog.Attr // how the last of them did
	back   bool        // the log said in this minute that it is back
	since  time.Time
	all    int // requests since then
}

// fail notes a request that got no answer, or no whole one.
func (o *outage) fail(attrs ...slog.Attr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open.Swap(true) {
		o.since, o.all = time.Now(), 0
	}
	o.all++
	if o.timer == nil {
		o.log.LogAttrs(context.Background(), slog.LevelWarn, o.message, attrs...)
		o.timer = time.AfterFunc(outageReport, o.report)
		return
	}
	o.failed, o.last = o.failed+1, attrs
}

const (
	noAnswer    = "no answer from the upstream"
	brokeAnswer = "the upstream broke off its answer"
)

// brokenAnswers is the error log of the proxy, which writes a line for each answer that breaks off.
type brokenAnswers struct{ *outage }

func (b brokenAnswers) Write(line []byte) (int, error) {
	text := strings.TrimPrefix(strings.TrimSpace(string(line)), "httputil: ReverseProxy read error during body copy: ")
	b.fail(slog.String("error", text))
	return len(line), nil
}

// report tells of the requests that have failed since the last line.
func (o *outage) report() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer == nil {
		return // closed
	}
	o.back = false
	if o.failed == 0 {
		o.timer = nil
		return
	}
	o.log.LogAttrs(context.Background(), slog.LevelWarn, o.message, append(o.last, slog.Int("failed", o.failed))...)
	o.failed = 0
	o.timer.Reset(outageReport)
}

// answered notes that the upstream has answered. It is on the way of every answer.
func (o *outage) answered() {
	if !o.open.Load() || !o.open.Swap(false) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.back && o.all > 1 { // a single failure is no outage
		o.back, o.failed = true, 0
		o.log.Info("the upstream answers again", "failed", o.all, "after", time.Since(o.since).Round(time.Millisecond))
	}
}

func (o *outage) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}
