package imports

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// ingress is a Kubernetes Ingress, with the fields that limits need, or a list of Ingresses.
type ingress struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Rules []struct {
			Host string `yaml:"host"`
			HTTP struct {
				Paths []struct {
					Path string `yaml:"path"`
					Type string `yaml:"pathType"`
				} `yaml:"paths"`
			} `yaml:"http"`
		} `yaml:"rules"`
	} `yaml:"spec"`
	Items []ingress `yaml:"items"`
}

// atLine matches the line number in an error of the YAML parser.
var atLine = regexp.MustCompile(` line [0-9]+`)

const annotation = "nginx.ingress.kubernetes.io/"

// Ingress imports the rate limiting annotations of ingress-nginx from manifests.
func Ingress(name string, text []byte) (*Result, error) {
	if len(text) > MaxConf {
		return nil, fmt.Errorf("%s: %w: manifests have at most %d MiB", name, errTooLarge, MaxConf>>20)
	}
	d := &document{head: []string{
		"Limits of ingress-nginx, by weir import nginx. limit-rps and limit-rpm are of nginx's limit_req with burst and nodelay: 1 + the limit times " +
			"limit-burst-multiplier (5) are admitted at once, as from a bucket that holds as many. Addresses are those of clients; IPv6 ones count by their /64.",
		"There each controller counts by itself; here all nodes count together. A refusal is a 429, there mostly a 503.",
	}}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var x ingress
		err := dec.Decode(&x)
		if errors.Is(err, io.EOF) {
			break
		}
		odd, mistyped := errors.AsType[*yaml.TypeError](err)
		if err != nil && !mistyped {
			return nil, fmt.Errorf("%s: is not valid YAML%s", name, atLine.FindString(err.Error())) // leave out the rest of the error, which may quote a secret
		}
		for _, one := range append([]ingress{x}, x.Items...) {
			if one.Kind != "Ingress" {
				continue
			}
			if mistyped { // once, because d.note skips repeated notes
				d.note(nil, name, true, "the value on%s isn't of the type that an Ingress has there: it is left out", atLine.FindString(" "+odd.Errors[0]))
			}
			d.ingress(&one)
		}
	}
	return d.result()
}

// ingress adds the rules of one Ingress. Its paths share their counters.
func (d *document) ingress(x *ingress) {
	where := "Ingress " + clip(printable(x.Metadata.Name))
	get := func(name string) string { return strings.TrimSpace(x.Metadata.Annotations[annotation+name]) }
	number := func(name string) int64 {
		s := get(name)
		n, err := strconv.ParseInt(s, 10, 32)
		if s != "" && (err != nil || n < 0) {
			d.note(nil, where, true, "%s must be a number: it is left out", name)
			return 0
		}
		return n
	}
	times := cmp.Or(number("limit-burst-multiplier"), 5)
	var limits []string
	for _, l := range []struct{ name, per string }{{"limit-rps", "second"}, {"limit-rpm", "minute"}} {
		if n := number(l.name); n > 0 {
			limits = append(limits, fmt.Sprintf("{limit: %d/%s, burst: %d}", n, l.per, n*times+1))
		}
	}
	match, ok := ingressMatch(x, get("use-regex") == "true")
	if !ok {
		d.note(nil, where, true, "no rule can have the expression of its path: it is left out")
		return
	}
	var rules []*entry
	if len(limits) > 0 {
		rules = append(rules, d.add(x.Metadata.Name, append(match, "by: [ip]", "limits: ["+strings.Join(limits, ", ")+"]")...))
	}
	if r := d.global(x, match, where, get, number); r != nil {
		rules = append(rules, r)
	}
	for _, r := range rules {
		if hosts := hosts(x); len(hosts) > 0 {
			d.note(r, where, true, "is for %s there: no rule is for a host, so it is for all of them", clip(printable(strings.Join(hosts, ", "))))
		}
		if nets := get("limit-whitelist"); nets != "" {
			d.note(r, where, true, "limit-whitelist: add allow: [%s], which bypasses every rule", clip(printable(nets)))
		}
	}
	const bandwidth = "limits bandwidth, which Weir doesn't: keep it in nginx"
	for _, l := range []struct{ name, text string }{
		{"limit-connections", "limits connections: it comes with concurrency; keep it in nginx until then"},
		{"limit-rate", bandwidth}, {"limit-rate-after", bandwidth},
	} {
		if get(l.name) != "" {
			d.note(nil, where, true, "%s %s", l.name, l.text)
		}
	}
}

// global adds the rule for the annotation global-rate-limit, whose limit all controllers share.
func (d *document) global(x *ingress, match []string, where string, get func(string) string, number func(string) int64) *entry {
	n := number("global-rate-limit")
	if n == 0 {
		return nil
	}
	window := get("global-rate-limit-window")
	if _, err := counter.ParseWindow(window); err != nil {
		d.note(nil, where, true, "global-rate-limit needs a global-rate-limit-window, such as 1m: it is left out")
		return nil
	}
	by, notes, wrong := (&nginxConf{}).key(cmp.Or(get("global-rate-limit-key"), "$remote_addr"))
	if wrong != "" {
		d.note(nil, where, true, "global-rate-limit %s: it is left out", wrong)
		return nil
	}
	fields := slices.Concat(match, byFields(by))
	r := d.add(x.Metadata.Name+"-global", append(fields, "algorithm: sliding_window_counter", fmt.Sprintf("limit: %d/%s", n, window))...)
	for _, note := range notes {
		d.note(r, where, note.Differs, "%s", note.Text)
	}
	if nets := get("global-rate-limit-ignored-cidrs"); nets != "" {
		d.note(r, where, true, "global-rate-limit-ignored-cidrs: add allow: [%s], which bypasses every rule", clip(printable(nets)))
	}
	return r
}

func hosts(x *ingress) (list []string) {
	for _, r := range x.Spec.Rules {
		if r.Host != "" && !slices.Contains(list, r.Host) {
			list = append(list, r.Host)
		}
	}
	return list
}

// ingressMatch returns the condition that matches all paths of an Ingress.
func ingressMatch(x *ingress, regex bool) (fields []string, ok bool) {
	var parts, endpoints []string
	for _, r := range x.Spec.Rules {
		if len(r.HTTP.Paths) == 0 {
			return nil, true
		}
		for _, p := range r.HTTP.Paths {
			plain := "/" + strings.Trim(p.Path, "/")
			switch {
			case p.Type == "Exact":
				parts, endpoints = append(parts, "^"+regexp.QuoteMeta(plain)+"$"), append(endpoints, plain)
			case plain == "/":
				return nil, true
			case regex:
				parts = append(parts, "^"+p.Path)
			default:
				parts, endpoints = append(parts, "^"+regexp.QuoteMeta(plain)+"(/|$)"), append(endpoints, plain+"/")
			}
		}
	}
	if len(parts) == 0 {
		return nil, true
	}
	m := weir.Match{EndpointRegex: strings.Join(parts, "|")}
	if len(parts) == 1 && len(endpoints) == 1 && safePath.MatchString(endpoints[0]) && endpoints[0] != "/" {
		m = weir.Match{Endpoint: endpoints[0]}
	}
	return matchField(m)
}
