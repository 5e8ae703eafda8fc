package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// A command changes only one entry of a list, so that concurrent changes of other entries aren't lost.
func TestListsAreChangedByOneEntry(t *testing.T) {
	for command, path := range map[string]string{"block": "/v1/denylist", "allow": "/v1/allowlist"} {
		s := newShell(t, answers{"POST " + path + "/entries": text(200, "43", applied)})
		for args, want := range map[string]string{
			"sk_bad":                    `{"key":"sk_bad"}`,
			"sk_bad --remove":           `{"key":"sk_bad","remove":true}`,
			"--client 1a2b3c4d -m leak": `{"client":"1a2b3c4d"}`,
		} {
			d := s.run(append([]string{"keys", command}, strings.Fields(args)...)...)
			d.expect(t, 0, "+b", "version 43 is in force")
			if len(d.asked) != 1 || d.asked[0].body != want {
				t.Errorf("%s %s: %+v", command, args, d.asked)
			}
		}
	}
}

func TestNothingToDoIsNoError(t *testing.T) {
	s := newShell(t, answers{
		"GET /v1/rules": text(200, "7", "rules: []"),
		"POST /v1/denylist/entries": func(w http.ResponseWriter, r *http.Request) {
			var in struct{ Remove bool }
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			if in.Remove {
				text(404, "", `{"error": {"code": "NOT_FOUND", "message": "the denylist has no entry …"}}`)(w, r)
				return
			}
			text(200, "7", `{"version": 7, "warnings": [], "diff": ""}`)(w, r)
		},
	})
	s.run("keys", "block", "sk_bad").expect(t, 0, "", "nothing to change: version 7 is the same")
	s.run("keys", "block", "sk_good", "--remove").expect(t, 0, "", "nothing to change: version 7 is the same")
	s.run("keys", "block", "sk_good", "--remove", "--json").expect(t, 0, `"version": 7`, "")
}

// If a fingerprint is given in place of a key, block blocks its client, and allow refuses.
func TestAFingerprintInPlaceOfAKey(t *testing.T) {
	s := newShell(t, answers{
		"POST /v1/clients":           text(200, "", `{"fingerprint": "1a2b3c4d"}`),
		"POST /v1/denylist/entries":  text(200, "43", applied),
		"POST /v1/allowlist/entries": text(200, "43", applied),
	})
	d := s.run("keys", "block", "1a2b3c4d")
	d.expect(t, 0, "+b", "that client is blocked")
	if last := d.asked[len(d.asked)-1]; last.body != `{"client":"1a2b3c4d"}` {
		t.Errorf("asked %+v", last)
	}
	s.run("keys", "allow", "1a2b3c4d").expect(t, exitUsage, "", "write --client 1a2b3c4d")
}

func TestTheEmergencyList(t *testing.T) {
	s := newShell(t, answers{
		"POST /v1/denylist/entries": text(200, "7", `{"version": 7, "warnings": [{"text": "the rules are in a file"}], "diff": "", "emergency": "added"}`),
		"GET /v1/denylist": text(200, "7", `{"entries": ["sk_old_*"], "emergency": [
			{"entry": "sk_leaked", "by": "ada", "message": "on a paste site", "since": "2026-05-01T10:00:00Z"}]}`),
		"POST /v1/explain": text(200, "", `{"reason": "denied", "pattern": "sk_leaked", "emergency": true, "rules": []}`),
	})
	d := s.run("keys", "block", "sk_leaked")
	d.expect(t, 0, "", "warning: the rules are in a file")
	d.expect(t, 0, "", "blocked by the emergency list")
	d = s.run("keys", "blocks")
	d.expect(t, 0, "sk_leaked", "1 on the deny list of the rules, 1 on the emergency list")
	for _, want := range []string{"emergency", "ada", "on a paste site", "sk_old_*", "rules"} {
		if !strings.Contains(d.stdout, want) {
			t.Errorf("without %q: %s", want, d.stdout)
		}
	}
	s.run("keys", "blocks", "--json").expect(t, 0, `"message": "on a paste site"`, "")
	s.run("explain", "sk_leaked").expect(t, 0, "denied by sk_leaked on the emergency list", "")
	s.run("rules", "lint", file(t, "rules: [{id: all, by: [ip], limit: 5/s}]")).expect(t, 0, "blocked by the emergency list and not by these rules", "")
	s.run("rules", "lint", file(t, "rules: [{id: all, by: [ip], limit: 5/s}]\nblacklist: [sk_leaked]\n")).expect(t, 0, "1 rule, 0 warnings", "")
}

func TestOverride(t *testing.T) {
	s := newShell(t, answers{"PUT /v1/rules/key": text(200, "43", applied), "DELETE /v1/rules/key": text(200, "43", applied)})
	for args, want := range map[string]string{
		"--limit 3000/minute":                  `PUT {"key":"sk_1","rule":"search","limit":"3000/minute"}`,
		"--limit 3000 --burst 500":             `PUT {"key":"sk_1","rule":"search","limit":3000,"capacity":500}`,
		"--limit 30/s --for 7d":                `PUT {"key":"sk_1","rule":"search","limit":"30/s","expires_in":"168h0m0s"}`,
		"--limit 30/s --for 90m --force -m up": `PUT {"key":"sk_1","rule":"search","limit":"30/s","expires_in":"1h30m0s"}`,
		"--limit 30/s --for good":              `PUT {"key":"sk_1","rule":"search","limit":"30/s","expires_in":"never"}`,
		"--remove":                             `DELETE {"key":"sk_1","rule":"search"}`,
	} {
		d := s.run(append(strings.Fields("keys override sk_1 --rule search"), strings.Fields(args)...)...)
		d.expect(t, 0, "+b", "version 43 is in force")
		if len(d.asked) != 1 || d.asked[0].method+" "+d.asked[0].body != want {
			t.Errorf("%s: %+v", args, d.asked)
		}
	}
	for args, want := range map[string]string{
		"--rule search":                        "--limit: is missing",
		"--limit 3/s":                          "--rule: is missing: give the id of the rule",
		"--rule search --limit lots":           "--limit: must be a count and a window",
		"--rule search --limit 3/s --burst 0":  "--burst: must be at least 1, got 0",
		"--rule search --limit 3/s --for ever": `--for: must be a time such as 90m, 1h or 7d, or good, got "ever"`,
		"--rule search --limit 3/s --remove":   "--remove: takes the override away",
	} {
		d := s.run(append([]string{"keys", "override", "sk_1"}, strings.Fields(args)...)...)
		d.expect(t, exitUsage, "", want)
		if len(d.asked) > 0 {
			t.Errorf("%s: %+v", args, d.asked)
		}
	}
}

// A key from standard input doesn't appear in a URL, either.
func TestKeysFromStandardInput(t *testing.T) {
	s := newShell(t, answers{
		"PUT /v1/rules/key": text(200, "43", applied), "POST /v1/counters/reset": text(200, "", `{"reset": 2}`),
		"POST /v1/counters/release": text(200, "", `{"released": ["flight"]}`),
		"POST /v1/counters":         text(200, "", `{"counters": []}`), "POST /v1/explain": text(200, "", `{"rules": []}`),
		"POST /v1/denylist/entries": text(200, "43", applied),
	})
	s.stdin = " sk_secret \r\nwhatever\n"
	for _, args := range []string{"keys override - --rule search --limit 1/s", "keys reset -", "keys show -", "keys release - --slot 5f0c4b1d9a7e3c2240d1e8b7a6f59312", "keys block -"} {
		d := s.run(strings.Fields(args)...)
		if d.code != 0 || !strings.Contains(d.asked[len(d.asked)-1].body, `"sk_secret"`) {
			t.Errorf("%s: exit %d, %s, %+v", args, d.code, d.stderr, d.asked)
		}
		for _, a := range d.asked {
			if strings.Contains(a.uri, "sk_secret") {
				t.Errorf("%s: %s", args, a.uri)
			}
		}
	}
	s.stdin = " \n"
	s.run("keys", "block", "-").expect(t, exitUsage, "", "the key is empty")
}

func TestCountersOfAClient(t *testing.T) {
	s := newShell(t, answers{
		"POST /v1/explain": text(200, "", `{"reason": "limits", "tier": "pro", "tier_why": "a keys entry matches", "rules": [
			{"rule": "quota", "applies": false, "why": "another path"}]}`),
		"POST /v1/counters": text(200, "", `{"counters": [
			{"rule": "quota", "policy": "quota-1m", "limit": "100/minute", "max": 100, "remaining": 73, "reset_after_ms": 16200, "retry_after_ms": 0, "degraded": false},
			{"rule": "quota", "policy": "quota-1d", "limit": "5000/day", "max": 5000, "remaining": 5000, "reset_after_ms": 0, "retry_after_ms": 0, "degraded": false},
			{"rule": "nobody", "limit": "1/s", "max": 1, "remaining": 0, "reset_after_ms": 500, "retry_after_ms": -1, "degraded": false},
			{"rule": "lost", "limit": "5/s", "max": 5, "remaining": 0, "reset_after_ms": 0, "retry_after_ms": 0, "degraded": true},
			{"rule": "login", "limit": "9/s", "max": 9, "remaining": 0, "reset_after_ms": 0, "retry_after_ms": 0, "degraded": true, "missing_home": "us"}]}`),
		"POST /v1/counters/reset": text(200, "", `{"reset": 4}`),
	})
	d := s.run("keys", "show", "sk_1", "--path", "/orders", "--ip", "203.0.113.7", "--user", "ada")
	const want = `tier  pro: a keys entry matches
  no   quota: another path

COUNTER   LIMIT       LEFT          NEXT IN  FULL IN
quota-1m  100/minute  73 of 100     now      16.2s
quota-1d  5000/day    5000 of 5000  now      now
nobody    1/s         0 of 1        never    500ms
lost      5/s         unknown: the store can't be reached
login     9/s         unknown: its home, region us, can't be asked
`
	if d.stdout != want || d.code != 0 {
		t.Errorf("exit %d, %s\n%s", d.code, d.stderr, d.stdout)
	}
	for _, a := range d.asked {
		if a.body != `{"key":"sk_1","method":"GET","path":"/orders","ip":"203.0.113.7","attributes":{"user":"ada"}}` {
			t.Errorf("%s %s", a.uri, a.body)
		}
	}
	d = s.run("keys", "show", "--user", "ada", "--json")
	var both struct {
		Counters []any
		Explain  struct{ Tier string }
	}
	if err := json.Unmarshal([]byte(d.stdout), &both); err != nil || len(both.Counters) != 5 || both.Explain.Tier != "pro" {
		t.Errorf("%v in %s", err, d.stdout)
	}
	s.run("keys", "reset", "sk_1").expect(t, 0, "", "4 counters reset: quota-1m, quota-1d, nobody, lost, login\n")
	s.run("keys", "reset", "sk_1", "--json").expect(t, 0, `"reset": 4`, "")
	s.run("keys", "reset").expect(t, exitUsage, "", "name the client")
	s.run("keys", "show", "sk_1", "--ip", "nonsense").expect(t, exitUsage, "", "ip")
}

// Amounts are shown as decimals, budgets with the time when they run out, and slots as requests in flight.
func TestCountersOfBudgets(t *testing.T) {
	s := newShell(t, answers{
		"POST /v1/explain": text(200, "", `{"reason": "limits", "rules": []}`),
		"POST /v1/counters": text(200, "", `{"counters": [
			{"rule": "spend", "policy": "spend", "amount": "usd", "limit": "50/month", "max": 50, "remaining": 12.05, "window_end": "2026-05-01T00:00:00Z", "runs_out_at": "2026-04-21T06:30:00Z", "reset_after_ms": 1209600000, "retry_after_ms": 0, "degraded": false},
			{"rule": "cents", "policy": "cents", "amount": "usd", "limit": "0.5/day", "max": 0.5, "remaining": 0.000001, "window_end": "2026-04-18T00:00:00Z", "runs_out_at": "2026-04-17T08:00:00.001Z", "reset_after_ms": 57600000, "retry_after_ms": 0, "degraded": false},
			{"rule": "tokens", "policy": "tokens", "amount": "tokens", "limit": "1000/minute", "max": 1000, "remaining": 999.5, "reset_after_ms": 30, "retry_after_ms": 0, "degraded": false},
			{"rule": "calls", "policy": "calls", "limit": "5/day", "max": 5, "remaining": 5, "window_end": "2026-04-18T00:00:00Z", "reset_after_ms": 0, "retry_after_ms": 0, "degraded": false},
			{"rule": "flight", "policy": "flight", "limit": "3 in flight", "max": 3, "remaining": 1, "in_flight": 2, "reset_after_ms": 30000, "retry_after_ms": 0, "degraded": false},
			{"rule": "full", "policy": "full", "limit": "3 in flight", "max": 3, "remaining": 0, "in_flight": 3, "reset_after_ms": 30000, "retry_after_ms": 30000, "degraded": false},
			{"rule": "idle", "policy": "idle", "limit": "3 in flight", "max": 3, "remaining": 3, "in_flight": 0, "reset_after_ms": 0, "retry_after_ms": 0, "degraded": false}]}`),
	})
	d := s.run("keys", "show", "sk_1")
	const want = `
COUNTER  LIMIT        LEFT                  NEXT IN        FULL IN       RUNS OUT IN
spend    50/month     12.05 of 50 usd       now            14d0h         4d6h
cents    0.5/day      0.000001 of 0.5 usd   now            16h0m         1ms
tokens   1000/minute  999.5 of 1000 tokens  now            30ms          -
calls    5/day        5 of 5                now            now           -
flight   3 in flight  1 of 3 (2 in flight)  now            when all end  -
full     3 in flight  0 of 3 (3 in flight)  when one ends  when all end  -
idle     3 in flight  3 of 3 (0 in flight)  now            now           -
`
	if d.stdout != want || d.code != 0 {
		t.Errorf("exit %d, %s\n%s", d.code, d.stderr, d.stdout)
	}
}

// The ages of requests in flight are computed by the node's clock, not this machine's, and one request can be released.
func TestSlotsOfAClient(t *testing.T) {
	const one, two = "5f0c4b1d9a7e3c2240d1e8b7a6f59312", "c1a9e07d4b3f48e29d5a6b7c8d9e0f11"
	s := newShell(t, answers{
		"POST /v1/explain": text(200, "", `{"reason": "limits", "rules": []}`),
		"POST /v1/counters": text(200, "", `{"at": "2021-05-01T10:00:00Z", "counters": [
			{"rule": "flight", "policy": "flight", "limit": "200 in flight", "max": 200, "remaining": 50, "in_flight": 150, "reset_after_ms": 30000, "retry_after_ms": 0, "degraded": false, "slots": [
				{"id": "`+one+`", "slots": 1, "since": "2021-05-01T09:40:47.529Z", "ends": "2021-05-01T10:00:11.8Z"},
				{"id": "`+two+`", "slots": 2, "since": "2021-05-01T09:59:58.04Z", "ends": "2021-05-01T10:00:00.02Z"}]},
			{"rule": "chat", "policy": "chat", "limit": "3 in flight", "max": 3, "remaining": 1, "in_flight": 2, "reset_after_ms": 30000, "retry_after_ms": 0, "degraded": false, "slots": [
				{"id": "`+two+`", "slots": 2, "since": "2021-05-01T10:00:00.01Z", "ends": "2021-05-03T10:00:00Z"}]},
			{"rule": "calls", "policy": "calls", "limit": "5/day", "max": 5, "remaining": 5, "reset_after_ms": 0, "retry_after_ms": 0, "degraded": false}]}`),
		"POST /v1/counters/release": text(200, "", `{"released": ["flight", "chat"]}`),
	})
	const want = `
COUNTER  LIMIT          LEFT                       NEXT IN  FULL IN
flight   200 in flight  50 of 200 (150 in flight)  now      when all end
chat     3 in flight    1 of 3 (2 in flight)       now      when all end
calls    5/day          5 of 5                     now      now

SLOT                              COUNTER  HOLDS  TAKEN       ENDS IN
5f0c4b1d9a7e3c2240d1e8b7a6f59312  flight   1      19m12s ago  12s
c1a9e07d4b3f48e29d5a6b7c8d9e0f11  flight   2      2s ago      0s
c1a9e07d4b3f48e29d5a6b7c8d9e0f11  chat     2      0s ago      2d0h
flight: only the oldest are listed, with 3 of 150 slots
`
	if d := s.run("keys", "show", "sk_1"); d.stdout != want || d.code != 0 {
		t.Errorf("exit %d, %s\n%s", d.code, d.stderr, d.stdout)
	}
	d := s.run("keys", "release", "sk_1", "--path", "/chat", "--slot", two)
	d.expect(t, 0, "", "slot released: flight, chat\n")
	if a := d.asked[0]; a.uri != "/v1/counters/release" || a.body != `{"key":"sk_1","method":"GET","path":"/chat","slot":"`+two+`"}` {
		t.Errorf("%s %s", a.uri, a.body)
	}
	d = s.run("keys", "release", "--client", "1a2b3c4d", "--rule", "chat", "--slot", one, "--unverified", "--json")
	d.expect(t, 0, `"released": [`, "")
	if a := d.asked[0]; a.uri != "/v1/counters/release?unverified=true" || a.body != `{"method":"GET","client":"1a2b3c4d","slot":"`+one+`","rule":"chat"}` {
		t.Errorf("%s %s", a.uri, a.body)
	}
	s.run("keys", "release", "sk_1").expect(t, exitUsage, "", "--slot: is missing: give the id of a slot, as weir keys show lists it")
	s.run("keys", "release", "sk_1", "--slot", "5f0c").expect(t, exitUsage, "", `--slot: must be the id of a slot, 32 hexadecimal digits, as weir keys show lists it, got "5f0c"`)
	s.run("keys", "release", "--slot", one).expect(t, exitUsage, "", "name the client")
}
