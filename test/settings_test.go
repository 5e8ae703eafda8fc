package test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// Flags take precedence over the environment, and the environment over weir.yaml.
func TestSettingsPrecedence(t *testing.T) {
	dir := t.TempDir()
	config := write(t, filepath.Join(dir, "weir.yaml"), `
rules: `+write(t, filepath.Join(dir, "file.yaml"), "rules:\n  - {id: from-file, limit: 5/hour}\n")+`
trusted_proxies: [127.0.0.1/32]
identity:
  api_key: {header: X-Key}
headers: {dialects: [ietf-06], expose: true}
refusal: {status: 420, content_type: text/plain, body: "enhance your calm, {{.Rule}}"}
`)
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	gateway := []string{"--config", config, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL}
	rule := func(n *node) string {
		_, body := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "k", "cost": 0}`)
		_, rest, _ := strings.Cut(body, `"rule":"`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	n := serve(t, gateway...)
	if got := rule(n); got != "from-file" {
		t.Errorf("from weir.yaml: %s", got)
	}
	var last *http.Response
	for range 6 {
		r, err := http.NewRequest("GET", n.Gateway+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Key", "k")
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		if last, err = http.DefaultClient.Do(r); err != nil {
			t.Fatal(err)
		}
		defer last.Body.Close()
	}
	body, _ := io.ReadAll(last.Body)
	if last.StatusCode != 420 || string(body) != "enhance your calm, from-file" || last.Header.Get("RateLimit-Limit") != "5" || last.Header.Get("X-RateLimit-Limit") != "" || last.Header.Get("Access-Control-Expose-Headers") == "" {
		t.Errorf("%s %v %q", last.Status, last.Header, body)
	}

	t.Setenv("WEIR_RULES", write(t, filepath.Join(dir, "env.yaml"), "rules:\n  - {id: from-env, limit: 5/hour}\n"))
	if got := rule(serve(t, gateway...)); got != "from-env" {
		t.Errorf("from the environment: %s", got)
	}
	flag := write(t, filepath.Join(dir, "flag.yaml"), "rules:\n  - {id: from-flag, limit: 5/hour}\n")
	if got := rule(serve(t, append(gateway, "--rules", flag)...)); got != "from-flag" {
		t.Errorf("from the flag: %s", got)
	}
}
