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

// Answers are the options for responses.
type Answers struct {
	// Headers adds headers to the client's response: the limit, what is left of it, and when it is full again. Refusals
	// have Retry-After even without this option.
	Headers bool
	// Limit, Remaining and Reset are the names of the headers. The defaults are RateLimit-Limit, RateLimit-Remaining
	// and RateLimit-Reset.
	Limit, Remaining, Reset string
	// DynamicMetadata adds the request, and the metadata of limits, for Envoy's other filters.
	DynamicMetadata bool
}

// decided sets the statuses of the request's charges, and reports whether they refuse the request. If the charges
// weren't decided, limits is empty.
func (c *evaluation) decided(limits []weir.LimitStatus) (refused bool) {
	least := uint32(math.MaxUint32)
	quotas, spent := 0, 0
	for i := range c.hits {
		h, st := &c.hits[i], c.out.Statuses[i]
		st.Code = rls.RateLimitResponse_OK
		switch {
		case h.limit == nil:
			if c.opts.Modes.Quota {
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
		switch {
		case !s.Degraded:
			left := s.Remaining
			if h.limit.closed() {
				left = 0
			}
			show(st, h.limit.wire, s.Allowed, left, s.ResetAfter, s.RetryAfter)
			if st.LimitRemaining < least {
				c.binding, least = i, st.LimitRemaining
			}
		case !s.Allowed: // decided without the store, so it has no numbers
			c.wait = max(c.wait, time.Second)
		}
		if h.limit.quota {
			quotas++
		}
		switch {
		case s.Allowed || h.limit.shadow:
			c.merge(h.limit.metadata)
			continue
		case h.limit.quota:
			spent++
		default:
			refused = true
			if !s.Degraded {
				c.binding, least = i, 0
			}
		}
		st.Code = rls.RateLimitResponse_OVER_LIMIT
		c.wait = max(c.wait, st.GetDurationUntilReset().AsDuration())
	}
	refused = refused || quotas > 0 && quotas == spent
	c.out.OverallCode = rls.RateLimitResponse_OK
	if refused = refused && !c.opts.Modes.Shadow; refused {
		c.out.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	return refused
}

func show(
	st *rls.RateLimitResponse_DescriptorStatus, limit *rls.RateLimitResponse_RateLimit, allowed bool, left int64, reset, retry time.Duration,
) {
	st.CurrentLimit = limit
	if allowed {
		st.LimitRemaining = uint32(min(left, math.MaxUint32))
	} else if retry > 0 {
		reset = retry
	}
	st.DurationUntilReset = &durationpb.Duration{Seconds: seconds(reset)}
}

// seconds rounds up, so that a client that waits this long isn't too early.
func seconds(d time.Duration) int64 { return int64((max(d, 1) + time.Second - 1) / time.Second) }

func (c *evaluation) merge(more *structpb.Struct) {
	switch {
	case more == nil || !c.opts.Answers.DynamicMetadata:
	case c.metadata == nil:
		c.metadata = proto.CloneOf(more)
	default:
		mergeInto(c.metadata, more)
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

func (c *evaluation) response() *rls.RateLimitResponse {
	if o := &c.opts.Answers; o.Headers && c.binding >= 0 {
		st := c.out.Statuses[c.binding]
		c.header(o.Limit, int64(st.GetCurrentLimit().GetRequestsPerUnit()))
		c.header(o.Remaining, int64(st.GetLimitRemaining()))
		c.header(o.Reset, st.GetDurationUntilReset().GetSeconds())
	}
	if c.out.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		c.header("Retry-After", seconds(c.wait))
	}
	c.describe()
	return c.out
}

func (c *evaluation) header(name string, value int64) {
	c.out.ResponseHeadersToAdd = append(c.out.ResponseHeadersToAdd, &core.HeaderValue{Key: name, Value: strconv.FormatInt(value, 10)})
}

// describe adds the request, and the metadata of the limits that aren't exhausted, for Envoy's other filters.
func (c *evaluation) describe() {
	if !c.opts.Answers.DynamicMetadata {
		return
	}
	descriptors := []any{}
	for _, d := range c.in.Descriptors {
		entries := []any{}
		for _, e := range d.GetEntries() {
			entries = append(entries, e.GetKey()+"="+e.GetValue())
		}
		one := map[string]any{"entries": entries}
		if l := d.GetLimit(); l != nil {
			one["limit"] = strings.Join(strings.Fields(l.String()), " ") // some builds of protobuf print double spaces, at random
		}
		if h := d.GetHitsAddend(); h != nil {
			one["hitsAddend"] = h.GetValue()
		}
		descriptors = append(descriptors, one)
	}
	fields := map[string]any{"domain": c.in.Domain, "descriptors": descriptors}
	if h := c.in.GetHitsAddend(); h != 0 {
		fields["hitsAddend"] = h
	}
	all, err := structpb.NewStruct(fields)
	if err == nil && c.metadata != nil { // can't fail: protobuf strings are UTF-8
		all.Fields["metadata"] = structpb.NewStructValue(c.metadata)
	}
	c.out.DynamicMetadata = all
}
