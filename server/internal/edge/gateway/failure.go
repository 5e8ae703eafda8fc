package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// statusClientGone is the status that other proxies log when the client closes a request. It is never sent.
const statusClientGone = 499

// failure returns the error response for a failure behind the gateway. The response must not reveal what is there.
func failure(status int, code, message string) *jsonerror.Error {
	return &jsonerror.Error{Status: status, Code: code, Message: message, Header: http.Header{"Cache-Control": {"no-store"}}}
}

func bodyStalled() *jsonerror.Error {
	return failure(http.StatusRequestTimeout, jsonerror.RequestTimeout, "The request body stopped arriving")
}

func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	x.restore(w.Header())
	if !neverSent(err) {
		httplimit.NoAnswer(r)
	}
	f, level := g.diagnose(r, x, err)
	attrs := []slog.Attr{slog.Int("status", f.Status), slog.String("method", r.Method), slog.String("error", err.Error())}
	if level == slog.LevelWarn {
		g.outage.fail(attrs...)
	} else {
		g.log.LogAttrs(r.Context(), level, noAnswer, attrs...)
	}
	if f.Status == statusClientGone {
		w.WriteHeader(f.Status)
		return
	}
	f.Write(w)
}

// neverSent reports whether nothing of the request was sent to the upstream, because there was no connection.
func neverSent(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	network, ok := errors.AsType[*net.OpError](err)
	return untrusted || ok && network.Op == "dial"
}

func (g *Gateway) diagnose(r *http.Request, x *exchange, err error) (*jsonerror.Error, slog.Level) {
	stalled, broken := x.body.fault()
	var tooLarge *http.MaxBytesError
	var fault *usage.Fault
	var network net.Error
	switch {
	case stalled:
		return bodyStalled(), slog.LevelDebug
	case errors.As(broken, &fault):
		g.settleNothing(r) // the upstream never received the complete body
		return unreadable(fault), slog.LevelDebug
	case errors.As(broken, &tooLarge):
		return failure(http.StatusRequestEntityTooLarge, jsonerror.BodyTooLarge, "The request body is too large"), slog.LevelDebug
	case errors.Is(r.Context().Err(), context.Canceled):
		return failure(statusClientGone, "", ""), slog.LevelDebug
	case broken != nil:
		return failure(http.StatusBadRequest, jsonerror.BadRequest, "The request body could not be read"), slog.LevelDebug
	case errors.As(err, &network) && network.Timeout():
		return failure(http.StatusGatewayTimeout, jsonerror.UpstreamTimeout, "The upstream did not answer in time"), slog.LevelWarn
	}
	return failure(http.StatusBadGateway, jsonerror.UpstreamUnavailable, "The upstream could not be reached, or broke off"), slog.LevelWarn
}

// outage logs failures of the upstream. It logs the first failure at once, and then, at most once a minute, how many
// requests have failed.
type outage struct {
	log     *slog.Logger
	message string
	open    atomic.Bool // the upstream has failed, and hasn't responded since

	mu         sync.Mutex // guards the fields below
	failed     int        // number of failed requests since the last line in the log
	all        int        // number of failed requests in this outage
	since      time.Time  // when the outage began
	told, back time.Time  // when the last line about failures was logged, and the last line that the upstream is back
}

const outageReport = time.Minute

func (o *outage) fail(attrs ...slog.Attr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !o.open.Swap(true) {
		o.since, o.all = now, 0
	}
	o.all++
	if o.failed++; now.Sub(o.told) < outageReport {
		return
	}
	if o.failed > 1 {
		attrs = append(attrs, slog.Int("failed", o.failed))
	}
	o.log.LogAttrs(context.Background(), slog.LevelWarn, o.message, attrs...)
	o.failed, o.told = 0, now
}

// answered records that the upstream has responded. It is called for every response, so it must be fast.
func (o *outage) answered() {
	if !o.open.Load() || !o.open.Swap(false) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.all > 1 && now.Sub(o.back) >= outageReport { // a single failure needs no line about the recovery
		o.log.Info("the upstream answers again", "failed", o.all, "after", now.Sub(o.since).Round(time.Millisecond))
		o.back, o.failed = now, 0
	}
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
