package envoy

import (
	"math"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir"
)

// Answers says what answers contain beside the decision.
type Answers struct {
	// Headers adds headers to the client's answer: the limit, what is left of it, and when it is
	// full again. Refusals have Retry-After in any case.
	Headers bool
	// Limit, Remaining and Reset are the headers' names. The defaults are RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset.
	Limit, Remaining, Reset string
	// DynamicMetadata adds the request and the limits' metadata for Envoy's other filters.
	DynamicMetadata bool
}

// answer builds the answer to a request that is decided by a configuration.
type answer struct {
	*rls.RateLimitResponse
	opts     *Options
	req      *rls.RateLimitRequest
	binding  int           // index of the status that headers describe, or -1
	wait     time.Duration // the longest wait of a refusal
	metadata *structpb.Struct
}

func newAnswer(opts *Options, req *rls.RateLimitRequest) answer {
	n := len(req.Descriptors)
	statuses := make([]rls.RateLimitResponse_DescriptorStatus, n) // in one allocation
	a := answer{RateLimitResponse: &rls.RateLimitResponse{Statuses: make([]*rls.RateLimitResponse_DescriptorStatus, n)}, opts: opts, req: req, binding: -1}
	for i := range statuses {
		a.Statuses[i] = &statuses[i]
	}
	return a
}

// decided fills in the statuses of the request's charges and reports whether these refuse it. limits
// is empty if the charges weren't decided.
func (a *answer) decided(c *evaluation, limits []weir.LimitStatus) (refused bool) {
	least := uint32(math.MaxUint32)
	quotas, spent := 0, 0
	for i := range c.hits {
		h := &c.hits[i]
		st := a.Statuses[i]
		st.Code = rls.RateLimitResponse_OK
		switch {
		case h.limit == nil:
			if a.opts.Modes.Quota {
				quotas++
			}
			continue
		case h.limit.unlimited():
			st.LimitRemaining = math.MaxUint32
			continue
		case h.back || len(limits) == 0:
			continue
		}
		s := &limits[h.at-1]
		over := !s.Allowed
		if s.Degraded { // its numbers mean nothing
			if over {
				a.wait = max(a.wait, time.Second)
			}
		} else {
			st.CurrentLimit = h.limit.wire
			st.LimitRemaining = remaining(h.limit, s)
			after := s.ResetAfter
			if over {
				st.LimitRemaining = 0
				if s.RetryAfter > 0 {
					after = s.RetryAfter
				}
			}
			st.DurationUntilReset = &durationpb.Duration{Seconds: seconds(after)}
			if st.LimitRemaining < least {
				a.binding, least = i, st.LimitRemaining
			}
		}
		if h.limit.quota {
			quotas++
		}
		switch {
		case !over || h.limit.shadow:
			a.merge(h.limit.metadata)
			continue
		case h.limit.quota:
			spent++
		default:
			refused = true
			if !s.Degraded {
				a.binding, least = i, 0
			}
		}
		st.Code = rls.RateLimitResponse_OVER_LIMIT
		a.wait = max(a.wait, st.GetDurationUntilReset().AsDuration())
	}
	refused = refused || quotas > 0 && quotas == spent
	a.OverallCode = rls.RateLimitResponse_OK
	if refused = refused && !a.opts.Modes.Shadow; refused {
		a.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	return refused
}

// seconds rounds up, so that a client which waits that long isn't too early.
func seconds(d time.Duration) int64 { return int64((max(d, 1) + time.Second - 1) / time.Second) }

func (a *answer) merge(more *structpb.Struct) {
	switch {
	case more == nil || !a.opts.Answers.DynamicMetadata:
	case a.metadata == nil:
		a.metadata = proto.CloneOf(more)
	default:
		mergeInto(a.metadata, more)
	}
}

func mergeInto(into, more *structpb.Struct) {
	for key, v := range more.GetFields() {
		old, there := into.Fields[key]
		switch {
		case !there:
			into.Fields[key] = proto.CloneOf(v)
		case old.GetStructValue() != nil && v.GetStructValue() != nil:
			mergeInto(old.GetStructValue(), v.GetStructValue())
		}
	}
}

func (a *answer) response() *rls.RateLimitResponse {
	if a.opts.Answers.Headers && a.binding >= 0 {
		st := a.Statuses[a.binding]
		a.header(a.opts.Answers.Limit, "RateLimit-Limit", int64(st.GetCurrentLimit().GetRequestsPerUnit()))
		a.header(a.opts.Answers.Remaining, "RateLimit-Remaining", int64(st.GetLimitRemaining()))
		a.header(a.opts.Answers.Reset, "RateLimit-Reset", st.GetDurationUntilReset().GetSeconds())
	}
	if a.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		a.header("", "Retry-After", seconds(a.wait))
	}
	if a.opts.Answers.DynamicMetadata {
		a.DynamicMetadata = a.describe()
	}
	return a.RateLimitResponse
}

func (a *answer) header(name, otherwise string, value int64) {
	if name == "" {
		name = otherwise
	}
	a.ResponseHeadersToAdd = append(a.ResponseHeadersToAdd, &core.HeaderValue{Key: name, Value: strconv.FormatInt(value, 10)})
}

// describe describes the request for Envoy's other filters, with the metadata of the limits that
// have room.
func (a *answer) describe() *structpb.Struct {
	list := &structpb.ListValue{}
	for _, d := range a.req.Descriptors {
		entries := &structpb.ListValue{}
		for _, e := range d.GetEntries() {
			entries.Values = append(entries.Values, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
		}
		one := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
		if l := d.GetLimit(); l != nil {
			one["limit"] = structpb.NewStringValue(strings.Join(strings.Fields(l.String()), " ")) // some builds of protobuf double its spaces
		}
		if h := d.GetHitsAddend(); h != nil {
			one["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
		}
		list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{Fields: one}))
	}
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(a.req.Domain), "descriptors": structpb.NewListValue(list)}
	if h := a.req.GetHitsAddend(); h != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(h))
	}
	if a.metadata != nil {
		fields["metadata"] = structpb.NewStructValue(a.metadata)
	}
	return &structpb.Struct{Fields: fields}
}
