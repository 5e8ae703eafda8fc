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
	d := newDocument(
		"Limits of ingress-nginx, by weir import nginx. limit-rps and limit-rpm use nginx's limit_req with burst and nodelay: they admit 1 + the limit times "+
			"limit-burst-multiplier (5) requests at once, as a bucket does that holds as many. They count by the client's address, and IPv6 by the /64.",
		"Each controller counts by itself, and Weir's nodes count together. Weir refuses with 429, and ingress-nginx with 503 by default.",
	)
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
	where := "Ingress " + clip(x.Metadata.Name)
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
	if len(limits) > 0 {
		r := d.add(x.Metadata.Name, append(match, "by: [ip]", "limits: ["+strings.Join(limits, ", ")+"]")...)
		var hosts []string
		for _, rule := range x.Spec.Rules {
			if rule.Host != "" && !slices.Contains(hosts, rule.Host) {
				hosts = append(hosts, rule.Host)
			}
		}
		if len(hosts) > 0 {
			d.note(r, where, true, "is for %s there: no rule is for a host, so it is for all of them", clip(strings.Join(hosts, ", ")))
		}
		if nets := get("limit-whitelist"); nets != "" {
			d.note(r, where, true, "limit-whitelist: add allow: [%s], which bypasses every rule", clip(nets))
		}
	}
	const bandwidth = "limits bandwidth, which Weir doesn't: keep it in nginx"
	for _, l := range []struct{ name, text string }{
		{"limit-connections", "limits connections: write a rule with by: [ip] and algorithm: concurrency"},
		{"global-rate-limit", "limits all controllers together, as every rule does: write a rule with that limit, and algorithm: sliding_window_counter"},
		{"limit-rate", bandwidth}, {"limit-rate-after", bandwidth},
	} {
		if get(l.name) != "" {
			d.note(nil, where, true, "%s %s", l.name, l.text)
		}
	}
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
