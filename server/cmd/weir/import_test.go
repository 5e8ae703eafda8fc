package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImport(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	edge := write("edge.yaml", "domain: edge\ndescriptors:\n  - {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}\n")
	write(".hidden.yaml", "nonsense")
	d := runWith(t, "", "import", "envoy", dir)
	d.expect(t, 0, "match: {descriptor: [edge, a]}", "differs: edge.yaml: edge.a: rule edge-a: quota_mode")
	d.expect(t, 0, "limit: 5/hour", "1 rule; not one to one: 1")
	runWith(t, d.stdout, "rules", "lint", "-").expect(t, 0, "ok, 1 rule", "")
	runWith(t, "domain: b\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2}}]", "import", "envoy", edge, "-").expect(t, 0, "[b, k]", "2 rules")
	var out struct {
		Rules int
		Text  string
		Notes []struct{ Where, Rule, Text string }
	}
	d = runWith(t, "", "import", "envoy", "--json", edge)
	if err := json.Unmarshal([]byte(d.stdout), &out); err != nil || out.Rules != 1 || len(out.Notes) != 1 || out.Notes[0].Rule != "edge-a" || !strings.Contains(out.Text, "5/hour") {
		t.Errorf("%v: %s", err, d.stdout)
	}
	runWith(t, "", "import", "envoy").expect(t, exitUsage, "", "name the folder of the configuration, or its files")
	runWith(t, "", "import", "envoy", filepath.Join(dir, "none")).expect(t, exitUsage, "", "no such file")
	runWith(t, "domain: a\ndescriptors: [{kee: b}]", "import", "envoy", "-").expect(t, exitRefused, "", `-:2:16: descriptors[0].kee: there is no key "kee"`)
	runWith(t, "domain: a", "import", "envoy", "-").expect(t, exitRefused, "", "there is no limit to import")
	runWith(t, "", "import", "envoi", "x").expect(t, exitUsage, "", "did you mean weir import envoy?")

	conf := write("nginx.conf", "http { limit_req_zone $remote_addr zone=z:1m rate=3r/s; server { limit_req zone=z burst=4 nodelay; limit_conn c 1; } }")
	runWith(t, "", "import", "nginx", conf).expect(t, 0, "limit: 3/second\n    burst: 5\n", "differs: nginx.conf:1: limit_conn")
	either := "http { map $http_x_key $k { default $http_x_key; '' $binary_remote_addr; } limit_req_zone $k zone=z:1m rate=3r/s; server { limit_req zone=z; } }"
	runWith(t, either, "import", "nginx", "-").expect(t, exitRefused, "", `a map has several values (a header, or else the address, is by: ["header:NAME"] in a rule): it is left out`)
	ingress := "apiVersion: networking.k8s.io/v1\nkind: Ingress\n"
	runWith(t, ingress, "import", "nginx", "-").expect(t, exitRefused, "", "-: is not a configuration of nginx; annotations of ingress-nginx aren't read")
	runWith(t, "", "import", "nginx", write("i.conf", ingress)).expect(t, exitRefused, "", "annotations of ingress-nginx aren't read")
	runWith(t, "http { password hunter2", "import", "nginx", "-").expect(t, exitRefused, "", "-:1: is not nginx's syntax")
	runWith(t, "", "import", "nginx", dir).expect(t, exitUsage, "", "is a directory")
	runWith(t, "", "import", "nginx", edge).expect(t, exitRefused, "", "annotations of ingress-nginx aren't read, and weir import envoy reads")
	runWith(t, "http { }", "import", "nginx", "-").expect(t, exitRefused, "", "there is no limit_req")
	runWith(t, "", "import", "envoy", t.TempDir()).expect(t, exitUsage, "", "has no *.yaml: name the folder")
	runWith(t, "", "import", "nginx").expect(t, exitUsage, "", "FILE")
}
