package envoy

import (
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/weirhq/weir"
)

// TestLabels checks that a limit's label consists of its keys, and includes a value only if the configuration asks for
// it, because a value may be a client's API key.
func TestLabels(t *testing.T) {
	for _, c := range []struct{ text, value, want string }{
		{"domain: d\ndescriptors: [{key: tok, value: sk_live_SECRET, RATE}]", "sk_live_SECRET", "d.tok"},
		{"domain: d\ndescriptors: [{key: tok, value: sk_live_*, RATE}]", "sk_live_1", "d.tok"},
		{"domain: d\ndescriptors: [{key: tok, RATE}]", "sk_live_1", "d.tok"},
		{"domain: d\ndescriptors: [{key: tok, value: gold, detailed_metric: true, RATE}]", "gold", "d.tok_gold"},
		{"domain: d\ndescriptors: [{key: tok, value: gold, value_to_metric: true, RATE}]", "gold", "d.tok_gold"},
		{"domain: d\ndescriptors: [{key: tok, value_to_metric: true, RATE}]", "sk_live_1", "d.tok"},
		{"domain: d.e\ndescriptors: [{key: tok, value: sk_live_SECRET, rate_limit: {name: gold, unit: day, requests_per_unit: 1}}]", "sk_live_SECRET", "d.e.gold"},
		{`domain: "d\e[31m"` + "\ndescriptors: [{key: tok, RATE}]", "x", "d\ufffd[31m.tok"},
	} {
		text := strings.Replace(c.text, "RATE", "rate_limit: {unit: day, requests_per_unit: 1}", 1)
		config, _, err := Parse([]File{{Name: "c.yaml", Text: []byte(text)}}, Modes{})
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range config.domains {
			l := level.limit([]*ratelimit.RateLimitDescriptor_Entry{{Key: "tok", Value: c.value}})
			if l.hard.Rule != c.want || l.hard.Name != c.want {
				t.Errorf("%s: the rule is %q, named %q, want %q", text, l.hard.Rule, l.hard.Name, c.want)
			}
		}
	}
	if n := len(label(strings.Repeat("k", 9999))); n != 200 {
		t.Errorf("a label has %d bytes", n)
	}
}

// TestObservedClients checks which client observers see for a descriptor.
func TestObservedClients(t *testing.T) {
	for key, want := range map[string]string{"api_key": "v  ", "user": " v ", "remote_address": "  203.0.113.7", "tenant": "v  "} {
		var req weir.Request
		value := "v"
		if key == "remote_address" {
			value = "203.0.113.7"
		}
		(&Service{}).identify(&req, &ratelimit.RateLimitDescriptor{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
		ip := ""
		if req.IP.IsValid() {
			ip = req.IP.String()
		}
		if got := strings.Join([]string{req.APIKey, req.User, ip}, " "); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
