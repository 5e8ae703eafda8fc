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

// lowered caches names of headers in lower case, of which there are few.
var lowered sync.Map

// limits describes the limits of a call, with room for what a refusal adds.
func (i *Interceptors) limits(c *call, v *httplimit.Verdict) metadata.MD {
	i.answers.SetHeaders(c.limits, &v.Request, &v.Decision, v.At)
	md := make(metadata.MD, 8)
	for name, values := range c.limits {
		lower, ok := lowered.Load(name)
		if !ok {
			lower, _ = lowered.LoadOrStore(name, strings.ToLower(name))
		}
		md[lower.(string)] = values
	}
	return md
}

const (
	// domain is the domain of the reasons in ErrorInfo.
	domain = "weir"
	// maxPushback is the longest wait for a client's automatic retries, because the client's caller
	// learns nothing in that time.
	maxPushback = 10 * time.Second
)

// refuse returns the answer to a call that isn't served. It sends the limits and the wait as
// trailers, because a client doesn't retry a call that was answered with metadata before them.
func (i *Interceptors) refuse(ctx context.Context, c *call, v *httplimit.Verdict) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err() // in a queue, or while it waited to be decided
	}
	d, x, md := &v.Decision, v.Refused(), metadata.MD{}
	if !d.Allowed { // otherwise it lost its place in a queue, and its numbers are of no use
		md = i.limits(c, v)
	}
	info := &errdetails.ErrorInfo{Reason: x.Code, Domain: domain}
	if x.Rule != "" {
		md.Set("x-ratelimit-rule", x.Rule)
		info.Metadata = map[string]string{"rule": x.Rule}
	}
	details := []protoadapt.MessageV1{info}
	wait, told := time.Duration(x.RetryAfterSeconds)*time.Second, time.Duration(x.RetryAfterSeconds)*time.Second
	if d.Reason == weir.ReasonLimited {
		details = append(details, violated(v))
		if wait = d.RetryAfter; d.Policy != nil && d.Policy.PerClient && wait < 2*time.Second {
			told = wait // no other client waits for this counter, so there is no herd to spread
		}
	}
	md.Set("grpc-retry-pushback-ms", "-1")
	if x.RetryAfterSeconds > 0 {
		md.Set("retry-after", strconv.FormatInt(x.RetryAfterSeconds, 10))
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
		if told <= maxPushback {
			md.Set("grpc-retry-pushback-ms", strconv.FormatInt(int64((told+time.Millisecond-1)/time.Millisecond), 10))
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

// violated lists the limits that refuse a call. It names their rules, but not the client.
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

// last serves a call whose decision is unfinished, and keeps its slots while it runs. Then it tells
// the limiter how the call ended. A call without an answer keeps its charge, whatever the cause,
// but its slots are freed.
func (i *Interceptors) last(ctx context.Context, method string, d weir.Decision, serve func() error) (err error) {
	fail := func(err error) {
		if err != nil && i.opts.OnError != nil {
			i.opts.OnError(method, err)
		}
	}
	stop := renew.Keep(ctx, i.limiter, &d, fail)
	err = errPanic
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
	return err
}

// httpStatus returns the status by which rules count a code: the one that google.rpc.Code names.
func httpStatus(c codes.Code) int {
	if s, ok := httpStatuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

var httpStatuses = map[codes.Code]int{
	codes.OK:                 http.StatusOK,
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.FailedPrecondition: http.StatusBadRequest,
	codes.OutOfRange:         http.StatusBadRequest,
	codes.Unauthenticated:    http.StatusUnauthorized,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.NotFound:           http.StatusNotFound,
	codes.AlreadyExists:      http.StatusConflict,
	codes.Aborted:            http.StatusConflict,
	codes.ResourceExhausted:  http.StatusTooManyRequests,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
}
