package envoy

import (
	"context"
	"net/http"
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

// authorization is Envoy's authorization service (ext_authz), version 3. It translates requests for package
// forwardauth, which decides them in the same way as requests to /check/envoy over HTTP.
type authorization struct {
	auth.UnimplementedAuthorizationServer
	gateways *forwardauth.Handler
}

var _ auth.AuthorizationServer = (*authorization)(nil)

// Check decides a request.
func (a *authorization) Check(ctx context.Context, req *auth.CheckRequest) (*auth.CheckResponse, error) {
	if _, hurried := ctx.Deadline(); hurried { // without a deadline, the store's own timeout applies, as over HTTP
		var end context.CancelFunc
		ctx, end = withBudget(ctx)
		defer end()
	}
	from := ""
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	reply, shed := a.gateways.Envoy(ctx, from, original(req.GetAttributes()))
	if shed {
		return nil, overloaded
	}
	if reply.Status == http.StatusOK {
		return &auth.CheckResponse{
			Status:       &rpc.Status{},
			HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{ResponseHeadersToAdd: headers(reply.Head)}},
		}, nil
	}
	return &auth.CheckResponse{
		Status: &rpc.Status{Code: int32(denial(reply.Status))},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &types.HttpStatus{Code: statusCode(reply.Status)},
			Headers: headers(reply.Head),
			Body:    strings.ToValidUTF8(reply.Body.String(), "\ufffd"),
		}},
	}, nil
}

func original(a *auth.AttributeContext) *http.Request {
	r := a.GetRequest().GetHttp()
	o := &http.Request{
		Method: r.GetMethod(), RequestURI: r.GetPath(), Host: r.GetHost(), ContentLength: max(r.GetSize(), -1),
		Header:     make(http.Header, len(r.GetHeaders())+len(r.GetHeaderMap().GetHeaders())),
		RemoteAddr: a.GetSource().GetAddress().GetSocketAddress().GetAddress(),
	}
	// With encode_raw_headers, Envoy sends each line of a header separately. Otherwise it joins them with
	// commas.
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

// addHeader adds a line of the client's headers to an http.Request, which has the method, the target and the host in
// other fields.
func addHeader(o *http.Request, name, value string) {
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

// headers converts headers for the client's response. Envoy replaces existing headers with them.
func headers(h http.Header) []*core.HeaderValueOption {
	var out []*core.HeaderValueOption
	for name, values := range h {
		if name == "Content-Length" { // Envoy sets it itself
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

// denial returns the gRPC code of a refusal, which Envoy shows in its logs. Envoy treats all codes except OK alike.
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

// statusCode returns the HTTP status for the client. Envoy accepts only registered statuses.
func statusCode(status int) types.StatusCode {
	if _, known := types.StatusCode_name[int32(status)]; known {
		return types.StatusCode(status)
	}
	return types.StatusCode_TooManyRequests
}
