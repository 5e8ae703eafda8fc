package main

import (
	"strings"
	"testing"
)

// TestRegionsAsANodeKnowsThem checks that a move that isn't complete shows as "soon", and that a region that was never
// heard has no round-trip time.
func TestRegionsAsANodeKnowsThem(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"name": "us", "home": "eu", "epoch": 2, "peers": [
			{"region": "ap", "state": "drained", "up": true, "rtt_ms": 153.27, "same_rules": false, "asks": 0, "short": 0},
			{"region": "eu", "home": true, "grace": true, "up": true, "rtt_ms": 152.4, "same_rules": true, "asks": 0, "short": 0},
			{"region": "sa", "up": false, "rtt_ms": 0, "same_rules": false, "asks": 0, "short": 0, "error": "connection refused"}]}`,
			`REGION  HOME     RTT       GLOBAL RULES  HEARD
us *
ap      drained  153.3 ms  others        yes
eu      soon     152.4 ms  the same      yes
sa                                       no: connection refused
`},
		{`{"name": "us", "home": "eu", "epoch": 2, "peers": [
			{"region": "eu", "home": true, "up": true, "rtt_ms": 152.4, "same_rules": true, "asks": 0, "short": 0}]}`,
			`REGION  HOME  RTT       GLOBAL RULES  HEARD
us *
eu      yes   152.4 ms  the same      yes
`},
		{`{"name": "us", "home": "us", "grace": true, "epoch": 3, "peers": []}`, "REGION  HOME  RTT  GLOBAL RULES  HEARD\nus *    soon\n"},
	} {
		s := newShell(t, answers{"GET /v1/regions": text(200, "", c.body)})
		d := s.run("regions")
		var lines []string
		for line := range strings.Lines(d.stdout) {
			lines = append(lines, strings.TrimRight(line, " \n")+"\n")
		}
		if got := strings.Join(lines, ""); got != c.want || d.code != 0 {
			t.Errorf("exit %d, %s\n%s", d.code, d.stderr, got)
		}
	}
}

// TestMovesExplainTheirCost checks that a move of the home explains its cost, and that other changes print no such text.
func TestMovesExplainTheirCost(t *testing.T) {
	s := newShell(t, answers{"POST /v1/regions": text(200, "", `{"name": "us", "home": "eu", "grace": false, "peers": []}`)})
	const says = "Until eu owns what us did, all regions have no more than their floors: of buckets for 25 s, of windows that have begun to their end.\n"
	s.run("regions", "move", "us", "eu").expect(t, 0, says, "")
	for _, args := range []string{"regions move us eu --json", "regions drain ap", "regions forget ap", "regions restore ap"} {
		if d := s.run(strings.Fields(args)...); d.code != 0 || strings.Contains(d.stdout, "floors") {
			t.Errorf("%s: exit %d, %s\n%s", args, d.code, d.stderr, d.stdout)
		}
	}
}
