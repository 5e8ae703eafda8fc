package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
)

const inFlight = `rules:
  - {id: flight, algorithm: concurrency, limit: 200, slot_ttl: 1m}
  - {id: search, algorithm: concurrency, limit: 3, match: {endpoint: /v1/search}}
  - {id: calls, limit: 1000/minute}
`

// An operator sees which slots a client holds and since when, and can release one, in all limits of its request or in a
// single one. A read-only token can only look.
func TestSlotsOfAClient(t *testing.T) {
	p := open(t, tokens(t), "")
	const ada, bob = "Authorization: Bearer secret-ada", "Authorization: Bearer secret-bob"
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", inFlight, "If-Match: *", "Content-Type: application/yaml", ada), 200, "")
	check := func(path string, cost int64) *weir.Decision {
		t.Helper()
		d, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: "sk_1", Method: "GET", Path: path, Cost: cost})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		return &d
	}
	begun := time.Now().Add(-time.Millisecond)
	check("/v1/search", 1)
	time.Sleep(2 * time.Millisecond)
	second := check("/v1/orders", 2)
	const client = `"key": "sk_1", "path": "/v1/search"`
	_, by := p.countersOf(t, "{"+client+"}", bob)
	flight, search := by["flight"], by["search"]
	if len(flight.Slots) != 2 || *flight.InFlight != 3 || len(search.Slots) != 1 || by["calls"].Slots != nil {
		t.Fatalf("%+v", by)
	}
	first, other := flight.Slots[0], flight.Slots[1]
	if first.ID != search.Slots[0].ID || first.Slots != 1 || other.Slots != 2 || !other.Since.After(first.Since) {
		t.Errorf("%+v", flight.Slots)
	}
	if first.Since.Before(begun.Truncate(time.Millisecond)) || first.Since.After(time.Now()) || first.Ends.Sub(first.Since) != time.Minute {
		t.Errorf("%+v, begun at %v", first, begun)
	}
	time.Sleep(2 * time.Millisecond)
	if err := p.limiter.Renew(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if _, by = p.countersOf(t, "{"+client+"}", bob); by["flight"].Slots[1].Since != other.Since || !by["flight"].Slots[1].Ends.After(other.Ends) {
		t.Errorf("renewed: %+v, before %+v", by["flight"].Slots[1], other)
	}
	if _, by = p.countersOf(t, `{"key": "sk_2", "path": "/v1/search"}`, bob); by["flight"].Slots != nil || *by["flight"].InFlight != 0 {
		t.Errorf("for another client: %+v", by["flight"])
	}

	release := func(status int, want, body string, token string) {
		t.Helper()
		a := p.do(t, "POST", "/v1/counters/release", "{"+body+"}", token)
		if a.status != status || !strings.Contains(a.text, want) {
			t.Errorf("%s: got %d %s, want %d %s", body, a.status, a.text, status, want)
		}
	}
	slot := fmt.Sprintf(`%s, "slot": %q`, client, first.ID)
	release(403, "FORBIDDEN", slot, bob)
	release(401, "UNAUTHORIZED", slot, "X: y")
	release(400, "slot: must be the id of a slot, 32 hexadecimal digits", client, ada)
	release(400, "slot: must be the id of a slot", client+`, "slot": "`+first.ID+`00"`, ada)
	release(400, "rule: must be a string", slot+`, "rule": 7`, ada)
	release(400, "there is no field", slot+`, "slto": 7`, ada)
	release(404, "no slot with this id is taken", client+`, "slot": "00112233445566778899aabbccddeeff"`, ada)
	release(404, "no slot with this id is taken", `"key": "sk_2", "slot": "`+first.ID+`"`, ada)
	release(404, "rule: no rule of this id limits", slot+`, "rule": "calls"`, ada)
	if _, by = p.countersOf(t, "{"+client+"}", bob); len(by["flight"].Slots) != 2 || len(by["search"].Slots) != 1 {
		t.Fatalf("the refused request released a slot: %+v", by)
	}
	release(200, `{"released":["search"]}`, slot+`, "rule": "SEARCH"`, ada)
	if _, by = p.countersOf(t, "{"+client+"}", bob); len(by["flight"].Slots) != 2 || by["search"].Slots != nil || *by["search"].InFlight != 0 {
		t.Fatalf("%+v", by)
	}
	check("/v1/search", 1)
	release(200, `{"released":["flight"]}`, client+`, "slot": "`+strings.ToUpper(first.ID)+`"`, ada)
	if _, by = p.countersOf(t, "{"+client+"}", bob); len(by["flight"].Slots) != 2 || by["flight"].Slots[0].ID != other.ID || *by["flight"].InFlight != 3 || len(by["search"].Slots) != 1 {
		t.Fatalf("%+v", by)
	}
	release(404, "no slot with this id is taken: it was released, or has ended", slot, ada)
	third := by["flight"].Slots[1]
	release(200, `{"released":["flight","search"]}`, client+`, "slot": "`+third.ID+`"`, ada)
	if _, by = p.countersOf(t, "{"+client+"}", bob); len(by["flight"].Slots) != 1 || by["flight"].Slots[0].ID != other.ID || *by["flight"].InFlight != 2 || by["search"].Slots != nil {
		t.Fatalf("the slot that ends last wasn't the one released: %+v", by)
	}
	log := p.log.String()
	if n := strings.Count(log, `what="release a slot"`); n != 3 || !strings.Contains(log, `who=ada`) || !strings.Contains(log, `limits=flight slot=`+first.ID) || strings.Contains(log, "sk_1") {
		t.Errorf("%d lines: %s", n, log)
	}

	p.noSlots = errors.New("redis is away")
	all, by := p.countersOf(t, "{"+client+"}", bob)
	if by["flight"].Slots != nil || *by["flight"].InFlight != 2 || !strings.Contains(all.Warning, "redis is away") {
		t.Errorf("%+v", all)
	}
	release(503, "STORE_UNAVAILABLE", slot, ada)
	p.noSlots = nil

	for range 150 {
		check("/v1/orders", 1)
	}
	_, by = p.countersOf(t, "{"+client+"}", bob)
	if flight := by["flight"]; len(flight.Slots) != 100 || flight.Slots[0].ID != other.ID || *flight.InFlight != 152 {
		t.Errorf("%d of %d slots, %+v first", len(flight.Slots), *flight.InFlight, flight.Slots[0])
	}
}
