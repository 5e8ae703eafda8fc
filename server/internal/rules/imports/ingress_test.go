package imports

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

const manifests = `
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: hunter2}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: api
  annotations:
    nginx.ingress.kubernetes.io/limit-rps: "2"
    nginx.ingress.kubernetes.io/limit-rpm: "60"
    nginx.ingress.kubernetes.io/limit-burst-multiplier: "3"
    nginx.ingress.kubernetes.io/limit-whitelist: "10.0.0.0/8,192.168.0.0/16"
    nginx.ingress.kubernetes.io/limit-connections: "5"
spec:
  rules:
    - host: api.example.com
      http:
        paths:
          - {path: /v1, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}
          - {path: /exact, pathType: Exact}
---
apiVersion: v1
kind: List
items:
  - kind: Ingress
    metadata:
      name: All
      annotations:
        nginx.ingress.kubernetes.io/limit-rpm: 30
        nginx.ingress.kubernetes.io/global-rate-limit: "100"
    spec: {rules: [{http: {paths: [{path: /, pathType: Prefix}]}}]}
  - kind: Ingress
    metadata: {name: bad, annotations: {nginx.ingress.kubernetes.io/limit-rps: "many", nginx.ingress.kubernetes.io/limit-rate: "1"}}
`

// TestIngress checks that limit-rps admits the limit times the multiplier plus 1 at once, as nginx does with the
// template of ingress-nginx.
func TestIngress(t *testing.T) {
	r, err := Ingress("ingress.yaml", []byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  - id: api\n    match: {endpoint_regex: \"^/v1(/|$)|^/exact$\"}\n    by: [ip]\n    limits: [{limit: 2/second, burst: 7}, {limit: 60/minute, burst: 181}]\n",
		"  - id: all\n    by: [ip]\n    limits: [{limit: 30/minute, burst: 151}]\n",
	} {
		if !strings.Contains(string(r.Text), want) {
			t.Errorf("%q isn't in\n%s", want, r.Text)
		}
	}
	var notes []string
	for _, n := range r.Notes {
		notes = append(notes, n.String())
	}
	for _, want := range []string{
		"Ingress api: rule api: is for api.example.com there", "Ingress api: rule api: limit-whitelist: add allow: [10.0.0.0/8,192.168.0.0/16]", "Ingress api: limit-connections limits connections",
		"Ingress All: global-rate-limit limits all controllers together", "Ingress bad: limit-rps must be a number", "Ingress bad: limit-rate limits bandwidth",
	} {
		if !slices.ContainsFunc(notes, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q isn't among %q", want, notes)
		}
	}
	if len(notes) != 6 || r.Rules != 2 || strings.Contains(string(r.Text), "hunter2") {
		t.Errorf("%q\n%s", notes, r.Text)
	}
	f, err := rulefile.Parse("rules.yaml", r.Text)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // virtual time, so nothing refills
		l := weir.NewLimiter(memstore.New(memstore.Options{}), f.Set, weir.Options{})
		admitted := map[string]int{}
		for range 200 {
			for _, path := range []string{"/v1/x", "/v2"} {
				d, err := l.Check(t.Context(), &weir.Request{Method: "GET", Path: path, IP: netip.MustParseAddr("203.0.113.7"), Peek: path == "/v1/x" && admitted[path] == 7})
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed && !(path == "/v1/x" && admitted[path] == 7) {
					admitted[path]++
				}
			}
		}
		if admitted["/v1/x"] != 7 || admitted["/v2"] < 144 || admitted["/v2"] > 146 {
			t.Error(admitted)
		}
	})
}

func TestHostileIngress(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 8) + "*" + string(c-1) + "]\n"
	}
	for name, text := range map[string]string{
		"bomb": bomb, "tabs": "kind: Ingress\n\tpassword: hunter2", "large": strings.Repeat("#", MaxConf+1), "brackets": "a: [hunter2",
	} {
		r, err := Ingress("i.yaml", []byte(text))
		if name == "bomb" && err == nil { // aliases that aren't needed don't have to be expanded
			if r.Rules > 0 {
				t.Error(r)
			}
			continue
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A value of the wrong type doesn't prevent the rest of the list from being imported.
	r, err := Ingress("i.yaml", []byte(`kind: List
items:
  - {kind: Ingress, metadata: {name: a, annotations: {nginx.ingress.kubernetes.io/limit-rps: 2}}}
  - {kind: Ingress, metadata: {name: b, annotations: {nginx.ingress.kubernetes.io/limit-rps: [hunter2]}}}
`))
	if err != nil || r.Rules != 1 || len(r.Notes) != 1 || r.Notes[0].String() != "i.yaml: the value on line 4 isn't of the type that an Ingress has there: it is left out" {
		t.Error(r, err)
	}
	for _, text := range []string{"", "[]", "7", "kind: Ingress\nmetadata: 7\n", "kind: Ingress\nspec: {rules: [{http: {paths: [{path: \"(\"}]}}]}\nmetadata: {annotations: {nginx.ingress.kubernetes.io/use-regex: \"true\", nginx.ingress.kubernetes.io/limit-rps: 1}}"} {
		if r, err := Ingress("i.yaml", []byte(text)); err != nil || r.Rules > 0 {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}
