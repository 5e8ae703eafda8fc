package gateway

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// outageReport is how often a continuing outage is logged.
const outageReport = time.Minute

// outage logs failures of the upstream: the first at once, then how many requests failed in each
// minute, until a minute passes without one.
type outage struct {
	log     *slog.Logger
	message string
	open    atomic.Bool // the upstream failed and has not answered since

	mu     sync.Mutex  // guards the fields below
	timer  *time.Timer // fires at the next report; nil while there is nothing to report
	failed int         // requests since the last line
	last   []slog.Attr // attributes of the last of them
	back   bool        // the log said within this minute that the upstream is back
	since  time.Time
	all    int // failed requests since then
}

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

type brokenAnswers struct{ *outage }

func (b brokenAnswers) Write(line []byte) (int, error) {
	text := strings.TrimPrefix(strings.TrimSpace(string(line)), "httputil: ReverseProxy read error during body copy: ")
	b.fail(slog.String("error", text))
	return len(line), nil
}

// report logs the requests that have failed since the last line.
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

// answered records that the upstream has answered. It must be quick: it runs for every answer.
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
