package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/server/internal/edge/usage"
)

// statusClientGone is what other proxies log as "client closed request". It is never sent.
const statusClientGone = 499

// failure returns an error of the gateway's own, which must not tell what lies behind the gateway.
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

// neverSent reports whether the upstream got nothing of the request, because there was no connection.
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
		g.settleNothing(r) // the upstream never had the whole body
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
