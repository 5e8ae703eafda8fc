package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/shown"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The keys that are allowed in each part of a file.
var (
	rootKeys       = []string{"domain", "descriptors"}
	descriptorKeys = []string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"}
	limitKeys      = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces"}
	replaceKeys    = []string{"name"}
	allKeys        = slices.Concat(rootKeys, descriptorKeys, limitKeys)
)

type field struct {
	name, path string
	value      *yaml.Node
}

// fields returns the keys of a map in the order of the file, including the keys that it merges in. If several have the
// same name, the last one counts, even if it is merged in. envoyproxy/ratelimit does the same.
func (r *reader) fields(n *yaml.Node, path string, known []string) []field {
	var list []field
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], r.resolve(n.Content[i+1])
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch {
		case value == nil:
			return list
		case key.Tag == "!!merge":
			for _, f := range r.merged(value, path, known) {
				if first[f.name] > 0 {
					r.warn(key, f.path, "is replaced by what is merged in below it, as in envoyproxy/ratelimit: put << first")
				}
				list = append(list, f)
			}
			continue
		case key.Kind != yaml.ScalarNode:
			r.fail(key, path, "", "a key must be a word, got %s", Describe(key))
			continue
		case first[key.Value] > 0:
			r.fail(key, at, "keep one of them", "is written twice: the first is on line %d", first[key.Value])
			continue
		}
		first[key.Value] = key.Line
		switch {
		case slices.Contains(known, key.Value):
			list = append(list, field{key.Value, at, value})
		case slices.Contains(allKeys, key.Value): // envoyproxy/ratelimit accepts these keys anywhere, and ignores them where they have no meaning
			r.warn(key, at, "has no meaning here, as in envoyproxy/ratelimit: the keys here are %s", strings.Join(known, ", "))
		default:
			hint := cmp.Or(guess.Hint(key.Value, known), "write one of "+strings.Join(known, ", "))
			r.fail(key, at, hint, "there is no key %q", clip(key.Value))
		}
	}
	return list
}

// merged returns the fields that << merges into a map.
func (r *reader) merged(n *yaml.Node, path string, known []string) (list []field) {
	r.merging++
	defer func() { r.merging-- }()
	if r.merging > maxDepth { // the maps merge each other in a circle
		r.fail(n, path, "", "is merged into itself")
		return nil
	}
	for _, m := range r.sources(n, path) {
		list = append(list, r.fields(m, path, known)...)
	}
	return list
}

// sources returns the maps that << merges into another map. The first map of a list comes last, because later maps
// override earlier ones.
func (r *reader) sources(n *yaml.Node, path string) (maps []*yaml.Node) {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	for _, m := range slices.Backward(list) {
		if m = r.resolve(m); m == nil || !r.isMap(m, path) || len(r.problems) >= maxProblems {
			return nil
		}
		maps = append(maps, m)
	}
	return maps
}

// resolve returns the value that an alias stands for. It returns nil if there are too many values, because aliases of
// aliases can turn a few lines into billions of values.
func (r *reader) resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if r.nodes++; r.nodes > maxNodes {
		if r.nodes == maxNodes+1 {
			r.fail(n, "", "", "has more than %d values", maxNodes)
		}
		return nil
	}
	return n
}

func (r *reader) isMap(n *yaml.Node, path string) bool {
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "", "must be a map, got %s", Describe(n))
		return false
	}
	return true
}

// items returns the maps in a list. If the value is empty, as after "descriptors:", the list is empty.
func (r *reader) items(n *yaml.Node, path string) []*yaml.Node {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.fail(n, path, "", "must be a list, got %s", Describe(n))
		return nil
	}
	list := make([]*yaml.Node, 0, len(n.Content))
	for i, item := range n.Content {
		if item = r.resolve(item); item == nil {
			return nil
		}
		if r.isMap(item, fmt.Sprintf("%s[%d]", path, i)) {
			list = append(list, item)
		}
	}
	return list
}

func (r *reader) text(f field) string {
	if f.value.Kind != yaml.ScalarNode {
		r.fail(f.value, f.path, "", "must be text, got %s", Describe(f.value))
		return ""
	}
	if f.value.Tag == "!!null" {
		return ""
	}
	return f.value.Value
}

func (r *reader) flag(f field) bool {
	on, ok := boolean(f.value)
	if !ok && f.value.Tag != "!!null" {
		r.fail(f.value, f.path, "", "must be true or false, got %s", Describe(f.value))
	}
	return on
}

// boolean parses the words for true and false in YAML 1.1, which envoyproxy/ratelimit accepts.
func boolean(n *yaml.Node) (on, ok bool) {
	switch n.Value {
	case "true", "True", "TRUE", "yes", "Yes", "YES", "y", "Y", "on", "On", "ON":
		on, ok = true, true
	case "false", "False", "FALSE", "no", "No", "NO", "n", "N", "off", "Off", "OFF":
		ok = true
	}
	bare := n.Tag == "!!bool" || n.Tag == "!!str" && n.Style == 0 // a word in quotes is text
	return on && bare, ok && bare
}

func (r *reader) number(f field) uint32 {
	if f.value.Tag == "!!null" {
		return 0
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(f.value.Value, "_", ""), 0, 64)
	if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!int" || err != nil || n < 0 || n > math.MaxUint32 {
		r.fail(f.value, f.path, "", "must be a whole number from 0 to %d, got %s", uint32(math.MaxUint32), Describe(f.value))
	}
	return uint32(n)
}

// metadata reads the metadata that responses contain. The descriptor's own values override merged
// ones.
func (r *reader) metadata(list []field) *structpb.Struct {
	all := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for _, f := range list {
		if f.value.Tag == "!!null" {
			clear(all.Fields)
			continue
		}
		if !r.isMap(f.value, f.path) {
			return nil
		}
		if err := r.fill(f.value, f.path, all, 0); err != nil {
			r.fail(f.value, f.path, "", "%v", err)
			return nil
		}
	}
	if len(all.Fields) == 0 {
		return nil
	}
	return all
}

var errDeep = errors.New("is nested too deep, or too large")

func (r *reader) fill(n *yaml.Node, path string, into *structpb.Struct, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag == "!!merge" {
			for _, m := range r.sources(n.Content[i+1], path) {
				if err := r.fill(m, path, into, depth+1); err != nil {
					return err
				}
			}
			continue
		}
		v, err := r.value(n.Content[i+1], path, depth+1)
		if err != nil {
			return err
		}
		into.Fields[n.Content[i].Value] = v
	}
	return nil
}

func (r *reader) value(n *yaml.Node, path string, depth int) (*structpb.Value, error) {
	if n = r.resolve(n); n == nil || depth > maxDepth {
		return nil, errDeep
	}
	switch n.Kind {
	case yaml.MappingNode:
		s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(n.Content)/2)}
		return structpb.NewStructValue(s), r.fill(n, path, s, depth)
	case yaml.SequenceNode:
		l := &structpb.ListValue{Values: make([]*structpb.Value, len(n.Content))}
		for i := range n.Content {
			v, err := r.value(n.Content[i], path, depth+1)
			if err != nil {
				return nil, err
			}
			l.Values[i] = v
		}
		return structpb.NewListValue(l), nil
	}
	if on, ok := boolean(n); ok {
		return structpb.NewBoolValue(on), nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, fmt.Errorf("%s can't be read", Describe(n))
	}
	out, err := structpb.NewValue(v)
	if f := out.GetNumberValue(); err != nil || math.IsInf(f, 0) || math.IsNaN(f) { // if JSON has no such value, such as for a date, keep the text
		return structpb.NewStringValue(n.Value), nil
	}
	return out, nil
}

// Describe describes a value, for an error that says that it has the wrong type.
func Describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(clip(n.Value))
}

// label makes a name printable and short, for use in metrics and logs.
func label(s string) string { return shown.Printable(shown.First(s, 200)) }

func clip(s string) string { return shown.Clip(s, 64) }
