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

// Fields of a descriptor that the module's latest release lacks. Unmarshalling keeps them as
// unknown fields.
const (
	quotaField    protowire.Number = 7 // bool quota_mode
	metadataField protowire.Number = 8 // google.protobuf.Struct metadata
)

// parseResources is Parse for what an xDS server sends. Errors name the resource and the path of
// the descriptor.
func parseResources(list []*anypb.Any, modes Modes) (c *Config, warnings rulefile.Problems, err error) {
	return compile(len(list), modes, func(r *reader, i int) {
		r.file.Name, r.kind = fmt.Sprintf("resources[%d]", i), "resource"
		r.resource(list[i])
	})
}

func (r *reader) resource(from *anypb.Any) {
	if from.GetTypeUrl() != configType {
		r.fail(nil, "", "", "is a %q: it must be a %s", clip(from.GetTypeUrl()), configType)
		return
	}
	res := &conf.RateLimitConfig{}
	if err := proto.Unmarshal(from.GetValue(), res); err != nil {
		r.fail(nil, "", "", "can't be read: %v", err)
		return
	}
	if res.GetName() != "" {
		r.file.Name = label(res.GetName())
	}
	r.domain = res.GetDomain()
	r.unknown(res, "", nil)
	if below := r.enter(nil); below != nil {
		r.entries(res.GetDescriptors(), "descriptors", below, r.top())
	}
}

// entries reads a resource's descriptors into a level.
func (r *reader) entries(list []*conf.RateLimitDescriptor, path string, into level, up inherited) {
	if !r.deeper(nil, path, up) {
		return
	}
	for i, from := range list {
		r.entry(from, fmt.Sprintf("%s[%d]", path, i), into, up)
	}
}

func (r *reader) entry(from *conf.RateLimitDescriptor, path string, into level, up inherited) {
	e := descriptorSpec{key: from.GetKey(), value: from.GetValue(), shadow: from.GetShadowMode(), detailed: from.GetDetailedMetric()}
	var meta *structpb.Struct
	r.unknown(from, path, func(field protowire.Number, kind protowire.Type, value []byte) bool {
		switch {
		case field == quotaField && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			e.quota = protowire.DecodeBool(v)
		case field == metadataField && kind == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			if meta == nil {
				meta = &structpb.Struct{}
			}
			// A nested map takes three levels: a Struct, an entry and a Value.
			if err := (proto.UnmarshalOptions{Merge: true, RecursionLimit: 3 * maxDepth}).Unmarshal(v, meta); err != nil {
				r.fail(nil, path+".metadata", "", "can't be read: %v", err)
			}
		default:
			return false
		}
		return true
	})
	d, here := r.place(&e, path, into, up)
	if d == nil {
		return
	}
	if w := from.GetRateLimit(); w != nil {
		r.unknown(w, path+".rate_limit", nil)
		// Convert it by number: the module lacks weeks, months and years.
		unit := rls.RateLimitResponse_RateLimit_Unit(w.GetUnit()).String()
		spec := limitSpec{name: w.GetName(), unit: unit, perUnit: w.GetRequestsPerUnit(), unlimited: w.GetUnlimited()}
		for _, o := range w.GetReplaces() {
			spec.replaces = append(spec.replaces, replacedLimit{name: o.GetName()})
		}
		r.limit(d, &e, spec, path+".rate_limit", here)
		if d.limit != nil && len(meta.GetFields()) > 0 {
			d.limit.metadata = meta
		}
	}
	if list := from.GetDescriptors(); len(list) > 0 {
		d.below = level{}
		r.entries(list, path+".descriptors", d.below, here)
	}
}

// unknown calls take for the fields of a message that its module lacks, and warns of those that
// take doesn't accept, since a newer server means something by them.
func (r *reader) unknown(m proto.Message, path string, take func(protowire.Number, protowire.Type, []byte) bool) {
	for rest := m.ProtoReflect().GetUnknown(); len(rest) > 0; {
		field, kind, tag := protowire.ConsumeTag(rest)
		length := protowire.ConsumeFieldValue(field, kind, rest[max(tag, 0):])
		if tag < 0 || length < 0 { // can't happen after unmarshalling
			return
		}
		if take == nil || !take(field, kind, rest[tag:tag+length]) {
			r.warn(nil, path, "this release doesn't know field %d, and ignores it", field)
		}
		rest = rest[tag+length:]
	}
}
