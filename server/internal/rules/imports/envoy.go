package imports

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// windows maps Envoy's units to the windows of rules.
var windows = map[string]string{"second": "second", "minute": "minute", "hour": "hour", "day": "day", "week": "7d", "month": "30d", "year": "365d"}

// unlimited is the highest limit that a rule can have. It is more than any client needs.
const unlimited = "9000000000/second"

// Envoy imports configuration files of envoyproxy/ratelimit. If they are invalid, the error lists all problems.
func Envoy(files []envoy.File) (*Result, error) {
	docs, err := envoy.Documents(files, envoy.Modes{MergeDomains: true})
	if err != nil {
		return nil, err
	}
	d := newDocument(
		"Limits of envoyproxy/ratelimit, by weir import envoy. They apply to Envoy's descriptors only: "+
			"let Envoy ask weir serve --grpc, without --envoy-config. If several rules match, the most specific one decides, as in "+
			"envoyproxy/ratelimit: an exact value goes before a value with a *, and that before a key without a value.",
		"past_limit: count makes refused requests count, as in envoyproxy/ratelimit. Without it, they take nothing.",
	)
	for i, doc := range docs {
		e := envoyFile{document: d, name: filepath.Base(files[i].Name)}
		e.descriptors(doc.Descriptors, []string{doc.Domain}, doc.Domain, false)
	}
	return d.result()
}

// envoyFile imports one file.
type envoyFile struct {
	*document
	name string
}

// descriptors imports the descriptors below a path. label is the path without values, which may be clients' keys.
// shared reports that a descriptor above them has share_threshold.
func (e *envoyFile) descriptors(list []envoy.Descriptor, path []string, label string, shared bool) {
	wide := map[string]int{} // for each key, how many of its descriptors match more than one value
	for i := range list {
		if isWide(&list[i]) {
			wide[list[i].Key]++
		}
	}
	for i := range list {
		x := &list[i]
		entry, at := x.Key, label+"."+x.Key
		if x.Value != "" {
			entry += "=" + x.Value
		}
		where := e.name + ": " + clip(at)
		if strings.Contains(x.Key, "=") {
			e.note(nil, where, true, "the key has a =, and no rule can name it: it is left out, with what is below it")
			continue
		}
		here, before, shared := append(slices.Clone(path), entry), len(e.ids), shared || x.Share
		if x.Limit != nil && !x.Limit.Unlimited {
			e.limit(x, here, at, where, shared)
		}
		e.descriptors(x.Descriptors, here, at, shared)
		switch {
		case len(e.ids) > before: // the imported rules below this path already keep wider rules from applying
		case wide[x.Key] > 1 || wide[x.Key] == 1 && !isWide(x): // without a rule, a wider descriptor's rule would apply to these requests
			r := e.add(at, descriptorMatch(here), "algorithm: fixed_window", "limit: "+unlimited)
			e.note(r, where, false, "unlimited there: this is the most that a rule can have, and keeps wider rules away")
		case x.Limit != nil:
			e.note(nil, where, false, "unlimited: no rule is needed")
		}
	}
}

// isWide reports whether a descriptor matches more than one value.
func isWide(x *envoy.Descriptor) bool { return x.Value == "" || strings.Contains(x.Value, "*") }

func descriptorMatch(path []string) string { return "match: {descriptor: " + scalars(path) + "}" }

func (e *envoyFile) limit(x *envoy.Descriptor, path []string, label, where string, shared bool) {
	l := x.Limit
	name := label
	if l.Name != "" {
		name = path[0] + "-" + l.Name
	}
	numbers := fmt.Sprintf("limit: %d/%s", l.PerUnit, windows[strings.ToLower(l.Unit)])
	if l.PerUnit == 0 {
		numbers = "limit: 1/365d"
	}
	fields := []string{descriptorMatch(path), "algorithm: fixed_window", numbers, "past_limit: count"}
	if x.Shadow {
		fields = append(fields, "shadow: true")
	}
	r := e.add(name, fields...)
	for _, n := range []struct {
		holds, differs bool
		text           string
	}{
		{l.PerUnit == 0, true, "requests_per_unit is 0, which refuses all requests: rules can't, so this one admits one request a year"},
		{x.Quota, true, "quota_mode: envoyproxy/ratelimit refuses a request only when all of its quotas are spent; this rule refuses by itself"},
		{len(l.Replaces) > 0, true, "replaces: in envoyproxy/ratelimit this limit replaces other limits of the request; here each of them counts"},
		{shared, true, "share_threshold: there all values share one counter; here each has its own"},
		{x.Metadata != nil, false, "metadata: responses don't carry it"},
		{x.Detailed, false, "detailed_metric, value_to_metric: metrics show the rule's id"},
	} {
		if n.holds {
			e.note(r, where, n.differs, "%s", n.text)
		}
	}
}
