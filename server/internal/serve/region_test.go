package serve

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// TestNamesOfRegions checks that the error about an invalid name mentions both the setting and the flag.
func TestNamesOfRegions(t *testing.T) {
	for name, fits := range map[string]bool{"eu-west": true, "9": true, "EU": false, "eu_west": false, "-": false, strings.Repeat("x", 33): false} {
		err := (&Region{Name: name}).validate()
		if (err == nil) != fits || err != nil && !strings.HasPrefix(err.Error(), "regions.name or --region: must be a name") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// linkedNode returns a node of region eu that knows the regions ap and us, its home, but hears from neither.
func linkedNode(t *testing.T, listen string) (n *node, log *bytes.Buffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	log = &bytes.Buffer{}
	peers := map[string][]string{"us": {"us.test:8084"}, "ap": {"ap.test:8084"}}
	n = &node{log: slog.New(slog.NewTextHandler(log, nil)), config: Config{Region: Region{Name: "eu", Home: "us", Listen: listen, SecretFile: file, Peers: peers}}}
	if err := n.openLink(); err != nil {
		t.Fatal(err)
	}
	return n, log
}

// TestNodesThatOthersCannotReach checks that a node without regions.listen warns about it when it starts.
func TestNodesThatOthersCannotReach(t *testing.T) {
	const says = "other regions can't reach this node: set regions.listen"
	for listen, warned := range map[string]bool{"": true, "127.0.0.1:0": false} {
		if _, log := linkedNode(t, listen); strings.Contains(log.String(), says) != warned {
			t.Errorf("listen %q: %s", listen, log)
		}
	}
}

// TestHomesThatAreNotHeard checks that a node reports homes that are no known region apart from regions that it just
// doesn't hear, each with the rules concerned.
func TestHomesThatAreNotHeard(t *testing.T) {
	n, _ := linkedNode(t, "127.0.0.1:0")
	rule := func(id, home string) weir.Rule {
		return weir.Rule{ID: id, Global: true, Home: home, OnPartition: weir.FailRefuse, Limits: []weir.Limit{weir.PerMinute(100)}}
	}
	for _, c := range []struct {
		rules []weir.Rule
		want  string
	}{
		{nil, ""},
		{[]weir.Rule{rule("here", "eu")}, ""},
		{[]weir.Rule{rule("a", ""), rule("b", "ap")}, "Not heard: region ap, us. Requests are refused with 503 by a, b"},
		{[]weir.Rule{rule("a", "mars"), rule("b", "venus")}, "The home isn't a region that this node knows (regions.peers), so what on_partition says decides: a (mars), b (venus)"},
		{[]weir.Rule{rule("a", "mars"), rule("b", "us")}, "The home isn't a region that this node knows (regions.peers), so what on_partition says decides: a (mars). Not heard: region us. Requests are refused with 503 by b"},
	} {
		set, err := weir.Compile(weir.Rules{Version: 1, Rules: c.rules})
		if err != nil {
			t.Fatal(err)
		}
		n.limiter = weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
		if got := n.scopes(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
