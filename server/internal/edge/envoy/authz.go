package envoy

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	types "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/weirhq/weir/server/internal/edge/forwardauth"
)

// authorization is Envoy's authorization service (ext_authz), version 3. A request is decided as one that Envoy asks about over
// HTTP at /check/envoy: here is only what gRPC makes of question and answer.
type authorization struct {
	auth.UnimplementedAuthorizationServer
	gateways *forwardauth.Handler
}

var _ auth.AuthorizationServer = (*authorization)(nil)

// Check decides a request.
func (a *authorization) Check(ctx context.Context, req *auth.CheckRequest) (*auth.CheckResponse, error) {
	if _, hurried := ctx.Deadline(); hurried { // else the store's own time-out holds, as over HTTP: Envoy says how long it waits
		b := withBudget(ctx)
		defer b.end()
		ctx = b
	}
	from := ""
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	answer := a.gateways.Envoy(ctx, from, original(req.GetAttributes()))
	if answer.Shed {
		return nil, overloaded
	}
	if answer.Status == http.StatusOK {
		return &auth.CheckResponse{
			Status:       &rpc.Status{},
			HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{ResponseHeadersToAdd: headers(answer.Header)}},
		}, nil
	}
	return &auth.CheckResponse{
		Status: &rpc.Status{Code: int32(denial(answer.Status))},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &types.HttpStatus{Code: statusCode(answer.Status)},
			Headers: headers(answer.Header),
			Body:    strings.ToValidUTF8(string(answer.Body), "\ufffd"),
		}},
	}, nil
}

// original is the client's request, as Envoy got it.
func original(a *auth.AttributeContext) *forwardauth.Original {
	r := a.GetRequest().GetHttp()
	o := &forwardauth.Original{
		Method: r.GetMethod(), Target: r.GetPath(), Host: r.GetHost(), ContentLength: max(r.GetSize(), -1),
		Header: make(http.Header, len(r.GetHeaders())+len(r.GetHeaderMap().GetHeaders())),
	}
	o.Peer, _ = netip.ParseAddr(a.GetSource().GetAddress().GetSocketAddress().GetAddress())
	// With encode_raw_headers each line of a header comes by itself, and as the client has sent it. Otherwise those of one name
	// are joined by commas.
	for name, value := range r.GetHeaders() {
		addHeader(o, name, value)
	}
	for _, h := range r.GetHeaderMap().GetHeaders() {
		if raw := h.GetRawValue(); len(raw) > 0 {
			addHeader(o, h.GetKey(), string(raw))
		} else {
			addHeader(o, h.GetKey(), h.GetValue())
		}
	}
	return o
}

// addHeader adds a line of the client's headers, as package http has them: method, target and host stand elsewhere.
func addHeader(o *forwardauth.Original, name, value string) {
	switch name = http.CanonicalHeaderKey(name); {
	case strings.HasPrefix(name, ":"), name == "Host":
	case name == "Content-Length":
		if n, err := strconv.ParseInt(value, 10, 64); err != nil || n != 0 {
			o.ContentLength = -1
		}
	case name == "Transfer-Encoding":
		o.ContentLength = -1
	default:
		o.Header[name] = append(o.Header[name], value)
	}
}

// headers are those that Envoy adds to the client's answer, in place of any that are there by these names.
func headers(h http.Header) []*core.HeaderValueOption {
	var out []*core.HeaderValueOption
	for name, values := range h {
		if name == "Content-Length" { // Envoy writes it
			continue
		}
		for i, v := range values {
			action := core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
			if i == 0 {
				action = core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
			}
			out = append(out, &core.HeaderValueOption{
				Header: &core.HeaderValue{Key: name, Value: strings.ToValidUTF8(v, "\ufffd")}, AppendAction: action,
			})
		}
	}
	slices.SortStableFunc(out, func(a, b *core.HeaderValueOption) int { return strings.Compare(a.Header.Key, b.Header.Key) })
	return out
}

// denial is the code of a refusal, which Envoy has in its logs. To its filter, all but OK are the same.
func denial(status int) codes.Code {
	switch {
	case status == http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case status == http.StatusBadRequest:
		return codes.InvalidArgument
	case status >= 500:
		return codes.Unavailable
	}
	return codes.PermissionDenied
}

// statusCode is the status that the client gets. Envoy has none that isn't in the registry.
func statusCode(status int) types.StatusCode {
	if _, known := types.StatusCode_name[int32(status)]; known {
		return types.StatusCode(status)
	}
	return types.StatusCode_TooManyRequests
}
