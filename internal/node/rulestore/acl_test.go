package rulestore

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// The permissions in the docs suffice for everything that a node does about rules. All of those that are listed for
// rules are used.
func TestThePermissionsInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^user weir on >PASSWORD (.+)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal(`docs/reference/redis.md has no line "user weir on >PASSWORD …"`)
	}
	acl := string(line[1])
	everything := func(t *testing.T, url string, servers ...*redistest.Server) {
		s := overRedis(t, url)
		n := newNode(s, "n", never, Version{})
		n.run(t)
		listening(t, s, n)
		v, err := n.Publish(t.Context(), Version{Parent: n.Current().Number, Text: []byte("text")})
		if err != nil {
			t.Fatal(err)
		}
		n.Look(t.Context()) // the node's own polls come at unknown times
		if err := s.PutBack(t.Context(), Version{Number: v.Number + 1}); err != nil {
			t.Fatal(err)
		}
		for _, r := range servers {
			if refusals := do(t, r, "ACL", "LOG").([]any); len(refusals) > 0 {
				t.Errorf("a node was refused something: %v", refusals[0])
			}
		}
	}
	t.Run("Server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{ACL: []string{"user default off", "user weir on >secret " + acl}})
		everything(t, "redis://weir:secret@"+r.Addr, r)
		info, err := r.Info(t.Context(), "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"publish", "subscribe", "zrange", "hexists"} {
			if !strings.Contains(acl, "+"+command+" ") || info["cmdstat_"+command] == "" {
				t.Errorf("%s isn't in the docs, or isn't used", command)
			}
		}
		// A node without the permission that is new in this release still follows changes.
		do(t, r, "ACL", "SETUSER", "weir", "-hexists")
		n := newNode(overRedis(t, "redis://weir:secret@"+r.Addr), "n", never, Version{})
		if n.Look(t.Context()); n.Current().Number == 0 || n.log.count("can't be reached") > 0 {
			t.Errorf("without HEXISTS: %s", n.log.text.String())
		}
		for _, channel := range []string{"other", "weir{nodes}"} {
			if v := do(t, r, "ACL", "DRYRUN", "weir", "SUBSCRIBE", channel); v == "OK" {
				t.Errorf("a node may listen to %s", channel)
			}
		}
	})
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{})
		for _, r := range c.Nodes {
			do(t, r, append([]string{"ACL", "SETUSER", "weir", "on", ">secret"}, strings.Fields(acl)...)...)
		}
		everything(t, strings.Replace(clusterURL(c), "://", "://weir:secret@", 1), c.Nodes...)
	})
}
