package gateway

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/weirhq/weir/httplimit"
)

// statusClientGone is what others call "client closed request". Nobody receives it.
const statusClientGone = 499

// failure is an answer of the gateway's own.
type failure struct {
	status        int
	code, message string
}

// write answers with a failure. The client learns nothing of what lies behind the gateway.
func (f *failure) write(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = f.code, f.message
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings alone
	}
	text = append(text, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(text) // the client may have left
	}
}

// fail answers a request that got no answer from the upstream.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	x.restore(w.Header())
	if !neverSent(err) {
		httplimit.NoAnswer(r)
	}
	f, level := g.diagnose(r, x, err)
	g.log.LogAttrs(r.Context(), level, "no answer from the upstream",
		slog.Int("status", f.status), slog.String("method", r.Method), slog.String("error", err.Error()))
	if f.status == statusClientGone {
		w.WriteHeader(f.status)
		return
	}
	f.write(w, r)
}

// neverSent reports whether the upstream certainly didn't get any of the request: there was no connection to it.
func neverSent(err error) bool {
	var network *net.OpError
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &network) && network.Op == "dial" || errors.As(err, &certificate)
}

// diagnose says whose fault it is that there is no answer, and how loud to say so.
func (g *Gateway) diagnose(r *http.Request, x *exchange, err error) (failure, slog.Level) {
	stalled, broken := x.body.fault()
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case stalled:
		return failure{http.StatusRequestTimeout, "REQUEST_TIMEOUT", "The request body stopped arriving"}, slog.LevelDebug
	case errors.As(broken, &tooLarge):
		return failure{http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", "The request body is too large"}, slog.LevelDebug
	case errors.Is(r.Context().Err(), context.Canceled):
		return failure{status: statusClientGone}, slog.LevelDebug
	case broken != nil:
		return failure{http.StatusBadRequest, "BAD_REQUEST", "The request body could not be read"}, slog.LevelDebug
	case errors.As(err, &network) && network.Timeout():
		return failure{http.StatusGatewayTimeout, "UPSTREAM_TIMEOUT", "The upstream did not answer in time"}, slog.LevelWarn
	}
	return failure{http.StatusBadGateway, "UPSTREAM_UNAVAILABLE", "The upstream could not be reached, or broke off"}, slog.LevelWarn
}
