package grpclimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/renew"
)

// tell tells the client of an admitted call how its limits stand, in the metadata that come before the answer.
func (i *Interceptors) tell(ctx context.Context, c *call, v *httplimit.Verdict) {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	if stream == nil {
		return // it isn't called by a server
	}
	if md := i.limits(c, v); len(md) > 0 {
		_ = stream.SetHeader(md) // fails where another interceptor has sent them already
	}
}

// limits says how the limits of a call stand.
func (i *Interceptors) limits(c *call, v *httplimit.Verdict) metadata.MD {
	i.answers.SetHeaders(c.told, &v.Request, &v.Decision, v.At)
	if len(c.told) == 0 {
		return nil
	}
	md := make(metadata.MD, len(c.told)+3) // with room for a refusal's
	for name, values := range c.told {
		md[lower(name)] = values
	}
	return md
}

var lowered sync.Map // names of headers, which are few: the dialects', and those of options

func lower(name string) string {
	if s, ok := lowered.Load(name); ok {
		return s.(string)
	}
	s := strings.ToLower(name)
	lowered.Store(name, s)
	return s
}

const (
	// domain is that of the reasons in ErrorInfo.
	domain = "weir"
	// maxPushback is the longest that a client's own retries are told to wait: meanwhile its caller knows nothing.
	maxPushback = 10 * time.Second
)

// refuse is the answer to a call that isn't served. Everything it says is in the trailers: a client whose call has been answered
// with metadata before them doesn't retry it.
func (i *Interceptors) refuse(ctx context.Context, c *call, v *httplimit.Verdict) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err() // in a queue, or while it waited to be decided
	}
	d, x := &v.Decision, v.Refused()
	var md metadata.MD
	if !d.Allowed { // else it had a place in a queue, and its numbers are of no use
		md = i.limits(c, v)
	}
	if md == nil {
		md = metadata.MD{}
	}
	if x.Rule != "" {
		md["x-ratelimit-rule"] = []string{x.Rule}
	}
	info := &errdetails.ErrorInfo{Reason: x.Code, Domain: domain}
	if x.Rule != "" {
		info.Metadata = map[string]string{"rule": x.Rule}
	}
	details := []protoadapt.MessageV1{info}
	wait, told := time.Duration(x.RetryAfterSeconds)*time.Second, time.Duration(x.RetryAfterSeconds)*time.Second
	if d.Reason == weir.ReasonLimited {
		details = append(details, violated(v))
		if wait = d.RetryAfter; d.Policy != nil && d.Policy.PerClient && wait < 2*time.Second {
			told = wait // nobody else waits for this counter, so there is no herd to spread
		}
	}
	md["grpc-retry-pushback-ms"] = []string{"-1"}
	if x.RetryAfterSeconds > 0 {
		md["retry-after"] = []string{strconv.FormatInt(x.RetryAfterSeconds, 10)}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
		if told <= maxPushback {
			md["grpc-retry-pushback-ms"] = []string{strconv.FormatInt(int64((told+time.Millisecond-1)/time.Millisecond), 10)}
		}
	}
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil {
		_ = stream.SetTrailer(md)
	}
	s := status.New(code(&x), x.Message)
	if more, err := s.WithDetails(details...); err == nil {
		s = more
	}
	return s.Err()
}

// violated lists the limits that refuse a call, by their rules: the client's own identity is nobody else's business.
func violated(v *httplimit.Verdict) *errdetails.QuotaFailure {
	out := &errdetails.QuotaFailure{}
	for _, l := range v.Decision.Limits() {
		if l.Allowed || l.Degraded || l.Policy.Shadow {
			continue
		}
		x := httplimit.Describe(&v.Request, &weir.Decision{Reason: weir.ReasonLimited, Policy: l.Policy, RetryAfter: l.RetryAfter}, v.At)
		out.Violations = append(out.Violations, &errdetails.QuotaFailure_Violation{
			Subject: "rule:" + l.Policy.Rule, Description: x.Message, QuotaId: l.Policy.Name, QuotaValue: l.Policy.Limit.Count,
		})
	}
	return out
}

// code is that of a refusal.
func code(x *httplimit.Refused) codes.Code {
	switch {
	case x.Status == http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case x.Status == http.StatusForbidden:
		return codes.PermissionDenied
	case x.Status == http.StatusBadRequest:
		return codes.InvalidArgument
	case x.Code == jsonerror.QueueTimeout: // its turn comes after its deadline
		return codes.DeadlineExceeded
	}
	return codes.Unavailable
}

// errPanic stands for the error of a handler that panics.
var errPanic = errors.New("panic")

// last serves a call whose decision is unfinished, keeps its slots meanwhile, and tells the limiter how it ended. A call that
// got no answer has used its attempt, whatever the cause; its slots are free all the same.
func (i *Interceptors) last(ctx context.Context, method string, d weir.Decision, serve func() error) {
	fail := func(err error) {
		if err != nil && i.opts.OnError != nil {
			i.opts.OnError(method, err)
		}
	}
	stop := renew.Keep(ctx, i.limiter, &d, fail)
	err := errPanic
	defer func() {
		stop()
		s, ok := status.FromError(err)
		if !ok {
			s = status.FromContextError(err)
		}
		o := weir.Outcome{Status: httpStatus(s.Code())}
		if err == errPanic || ctx.Err() != nil || s.Code() == codes.Canceled {
			o.Status = 0
		}
		fail(i.limiter.Finish(context.WithoutCancel(ctx), &d, o))
	}()
	err = serve()
}

// httpStatus is the status that stands for a code, by which rules count: the one that google.rpc.Code names.
func httpStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}
