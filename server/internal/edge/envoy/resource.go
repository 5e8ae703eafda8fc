package envoy

import (
	"fmt"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir/rulefile"
)

const configType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Fields of a descriptor that the latest release of the Go module lacks. Unmarshaling keeps them as unknown fields.
const (
	quotaField    protowire.Number = 7 // bool quota_mode
	metadataField protowire.Number = 8 // google.protobuf.Struct metadata
)

// parseResources is like Parse, for resources from an xDS server.
func parseResources(list []*anypb.Any, modes Modes) (c *Config, warnings rulefile.Problems, err error) {
	return compile(len(list), modes, func(r *reader, i int) *Document {
		r.file.Name, r.kind = fmt.Sprintf("resources[%d]", i), "resource"
		return r.resource(list[i])
	})
}

func (r *reader) resource(from *anypb.Any) *Document {
	if from.GetTypeUrl() != configType {
		r.fail(nil, "", "", "is a %q: it must be a %s", clip(from.GetTypeUrl()), configType)
		return nil
	}
	res := &conf.RateLimitConfig{}
	if err := proto.Unmarshal(from.GetValue(), res); err != nil {
		r.fail(nil, "", "", "can't be read: %v", err)
		return nil
	}
	if res.GetName() != "" {
		r.file.Name = label(res.GetName())
	}
	r.unknown(res, "", nil)
	return &Document{Domain: res.GetDomain(), Descriptors: r.entries(res.GetDescriptors(), "descriptors", 0)}
}

func (r *reader) entries(from []*conf.RateLimitDescriptor, path string, depth int) (list []Descriptor) {
	if len(from) == 0 || !r.deeper(nil, path, depth) {
		return nil
	}
	for i := range from {
		list = append(list, r.entry(from[i], fmt.Sprintf("%s[%d]", path, i), depth))
	}
	return list
}

func (r *reader) entry(from *conf.RateLimitDescriptor, path string, depth int) Descriptor {
	d := Descriptor{path: path, Key: from.GetKey(), Value: from.GetValue(), Shadow: from.GetShadowMode(), Detailed: from.GetDetailedMetric()}
	meta := &structpb.Struct{}
	r.unknown(from, path, func(field protowire.Number, kind protowire.Type, value []byte) bool {
		switch {
		case field == quotaField && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			d.Quota = protowire.DecodeBool(v)
		case field == metadataField && kind == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			// A nested map has three levels of messages: a Struct, an entry and a Value.
			if err := (proto.UnmarshalOptions{Merge: true, RecursionLimit: 3 * maxDepth}).Unmarshal(v, meta); err != nil {
				r.fail(nil, path+".metadata", "", "can't be read: %v", err)
			}
		default:
			return false
		}
		return true
	})
	if len(meta.GetFields()) > 0 {
		d.Metadata = meta
	}
	if w := from.GetRateLimit(); w != nil {
		at := path + ".rate_limit"
		r.unknown(w, at, nil)
		// Convert the unit by its number, because the Go module lacks weeks, months and years.
		unit := rls.RateLimitResponse_RateLimit_Unit(w.GetUnit()).String()
		d.Limit = &RateLimit{Name: w.GetName(), Unit: unit, PerUnit: w.GetRequestsPerUnit(), Unlimited: w.GetUnlimited(), path: at}
		for _, o := range w.GetReplaces() {
			d.Limit.Replaces = append(d.Limit.Replaces, replacedLimit{name: o.GetName()})
		}
	}
	d.Descriptors = r.entries(from.GetDescriptors(), path+".descriptors", depth+1)
	return d
}

// unknown calls take for each unknown field of a message. If take returns false, it adds a warning.
func (r *reader) unknown(m proto.Message, path string, take func(protowire.Number, protowire.Type, []byte) bool) {
	for rest := m.ProtoReflect().GetUnknown(); len(rest) > 0; {
		field, kind, tag := protowire.ConsumeTag(rest)
		length := protowire.ConsumeFieldValue(field, kind, rest[max(tag, 0):])
		if tag < 0 || length < 0 { // can't happen after unmarshaling
			return
		}
		if take == nil || !take(field, kind, rest[tag:tag+length]) {
			r.warn(nil, path, "this release doesn't know field %d, and ignores it", field)
		}
		rest = rest[tag+length:]
	}
}
