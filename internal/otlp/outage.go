package otlp

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// outage tells of a collector that can't be reached: when it is lost, once a minute while it is, and when it is back.
type outage struct {
	log      *slog.Logger
	what     string   // metrics or traces
	protocol string   // that they are sent by
	secrets  []string // which an answer of the collector might repeat

	mu     sync.Mutex
	failed int       // reports in a row; guarded by mu
	told   time.Time // guarded by mu
}

const tellEvery = time.Minute

// note is told how each report went.
func (o *outage) note(err error) {
	if errors.Is(err, context.Canceled) {
		return // the node ends
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil && o.failed > 0:
		o.log.Info("OTLP: the collector is back", "of", o.what, "failed", o.failed)
		o.failed, o.told = 0, time.Time{}
	case err == nil:
	case time.Since(o.told) < tellEvery:
		o.failed++
	default:
		o.failed++
		o.told = time.Now()
		o.log.Warn("OTLP: the collector can't be reached, or refuses", "of", o.what, "failed", o.failed, "error", o.redact(err.Error()),
			"protocol", o.protocol, "hint", "is it the port of this protocol? Collectors take http/protobuf at 4318 and grpc at 4317; OTEL_EXPORTER_OTLP_PROTOCOL chooses")
	}
}

// mostText is how much is told of what a collector answers.
const mostText = 300

func (o *outage) redact(text string) string {
	for _, s := range o.secrets {
		text = strings.ReplaceAll(text, s, "…")
	}
	if len(text) > mostText {
		text = strings.ToValidUTF8(text[:mostText], "") + "…"
	}
	return text
}
