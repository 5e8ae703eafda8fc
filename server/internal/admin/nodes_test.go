package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/admin"
)

// TestNodesFromMemory checks that the list has the last report of each node, with its age. If a node hasn't been heard
// lately, the state of its store is unknown.
func TestNodesFromMemory(t *testing.T) {
	p := open(t, nil, "")
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	says := func(name string, seen time.Duration) redisstore.Peer {
		return redisstore.Peer{
			Name: name, Seen: time.Now().Add(-seen),
			Says: rulestore.Say(rulestore.Node{Version: "v", RulesVersion: 7, RulesHash: "h", RulesText: "00ff12ab", Store: "degraded", Since: since, Lost: []string{"10.0.0.5:6379"}}),
		}
	}
	file := redisstore.Peer{Name: "n4", Seen: time.Now(), Says: rulestore.Say(rulestore.Node{RulesVersion: 3, InFile: true, Store: "up"})}
	peers := []redisstore.Peer{says("n1", time.Hour), says("n2", 0), says("n3", time.Minute), file, {Name: "counts only", Seen: time.Now()}}
	list := func() (out admin.Nodes) {
		t.Helper()
		res, err := p.Client().Get(p.URL + "/v1/nodes")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&out); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d, %v", res.StatusCode, err)
		}
		return out
	}
	rows := func(of admin.Nodes) (all []string) {
		for _, n := range of.Nodes {
			all = append(all, fmt.Sprintf("%s %v %d %s %v %v", n.Name, n.Self, n.RulesVersion, n.Store, n.Since.Equal(since), n.Lost))
		}
		return all
	}
	if got := list(); !got.Stale && got.AsOf != nil || len(got.Nodes) != 1 {
		t.Errorf("before a list was heard: %+v", got)
	}
	p.heard = redisstore.Heard{Peers: peers, At: time.Now().Add(-time.Second)}
	got := list()
	want := []string{"n1 true 1 up false []", "n2 false 7 degraded true [10.0.0.5:6379]", "n3 false 7 unknown false []", "n4 false 3 up false []"}
	if !slices.Equal(rows(got), want) || got.Stale || got.AsOf == nil || *got.AgeSeconds < 1 || *got.AgeSeconds > 60 || got.Store.URL == "" {
		t.Errorf("got %v, want %v: %+v", rows(got), want, got)
	}
	// With many nodes, lists come less often. A list that isn't stale is treated as current.
	const late = 20 * time.Second
	p.heard.At = p.heard.At.Add(-late)
	p.heard.Peers = slices.Clone(peers)
	for i := range p.heard.Peers {
		p.heard.Peers[i].Seen = p.heard.Peers[i].Seen.Add(-late)
	}
	if got := list(); !slices.Equal(rows(got), want) {
		t.Errorf("of a list that is %v old: got %v, want %v", late, rows(got), want)
	}
	if text := got.Nodes[1].RulesText; text != "00ff12ab" {
		t.Errorf("n2 has rules of the text %q", text)
	}
	p.heard.Stale = true
	want[1], want[3] = "n2 false 7 unknown false []", "n4 false 3 unknown false []"
	if got := list(); !slices.Equal(rows(got), want) || !got.Stale {
		t.Errorf("got %v, want %v: %+v", rows(got), want, got)
	}
}
