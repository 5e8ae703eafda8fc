package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

const oneClient = `{"key": "one", "path": "/chat"}`

// slotsAt returns a node's view of a client's requests in flight.
func slotsAt(t *testing.T, n *node) adminapi.Counter {
	t.Helper()
	status, text := post(t, http.DefaultClient, n.Admin+"/v1/counters", oneClient)
	var all adminapi.Counters
	if err := json.Unmarshal([]byte(text), &all); err != nil || status != 200 || len(all.Counters) != 1 || all.Counters[0].InFlight == nil {
		t.Fatalf("%d %s: %v", status, text, err)
	}
	return all.Counters[0]
}

// A slot that was taken on one node is listed on the other, which can release it. A client that still renews the slot
// gets it back if one is free. If none is, the client gets an error, and its release doesn't free other clients' slots.
func TestSlotsReleasedAtAnotherNode(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) string{
		"one server": func(t *testing.T) string { return "redis://" + redistest.New(t, redistest.Options{}).Addr },
		"Cluster": func(t *testing.T) string {
			return "redis-cluster://" + strings.Join(redistest.NewCluster(t, redistest.Options{}).Addrs()[:2], ",")
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: chat, algorithm: concurrency, limit: 2, slot_ttl: 1h}]\n")
			nodes := serveAll(t, 2, append(patient, "--rules", rules, "--store", open(t))...)
			reached(t, nodes...)
			one, other := nodes[0], nodes[1]
			take := func(n *node) string {
				t.Helper()
				a := check(t, n, oneClient)
				if !a.Allowed || a.Receipt == "" {
					t.Fatalf("%+v", a.CheckResponse)
				}
				return a.Receipt
			}
			settle := func(what, receipt string, want int, code string) {
				t.Helper()
				if status, text := post(t, http.DefaultClient, one.HTTP+"/v1/"+what, fmt.Sprintf(`{"receipt": %q}`, receipt)); status != want || !strings.Contains(text, code) {
					t.Fatalf("%s: %d %s, want %d %s", what, status, text, want, code)
				}
			}
			begun := time.Now().Add(-time.Second)
			receipt := take(one)
			c := slotsAt(t, other)
			if len(c.Slots) != 1 || *c.InFlight != 1 || c.Slots[0].Slots != 1 || c.Slots[0].Since.Before(begun) || c.Slots[0].Ends.Sub(c.Slots[0].Since) != time.Hour {
				t.Fatalf("%+v", c)
			}
			first := c.Slots[0]
			release := fmt.Sprintf(`{"key": "one", "path": "/chat", "rule": "chat", "slot": %q}`, first.ID)
			for _, want := range []int{200, 404} {
				if status, text := post(t, http.DefaultClient, other.Admin+"/v1/counters/release", release); status != want {
					t.Fatalf("%d %s, want %d", status, text, want)
				}
				if c := slotsAt(t, one); len(c.Slots) != 0 || *c.InFlight != 0 {
					t.Fatalf("after its release: %+v", c)
				}
			}
			settle("renew", receipt, 200, "")
			if c = slotsAt(t, other); len(c.Slots) != 1 || c.Slots[0].ID != first.ID || !c.Slots[0].Since.After(first.Since) {
				t.Fatalf("renewed while one was free: %+v, before %+v", c.Slots, first)
			}
			said, err := exec.Command(binary, "keys", "release", "one", "--path", "/chat", "--slot", first.ID, "--admin", other.Admin).CombinedOutput()
			if err != nil || string(said) != "slot released: chat\n" {
				t.Fatalf("%s: %v", said, err)
			}
			take(one)
			take(other)
			settle("renew", receipt, 409, "SLOT_LOST")
			settle("release", receipt, 200, "")
			if c = slotsAt(t, one); len(c.Slots) != 2 || *c.InFlight != 2 {
				t.Fatalf("the slots of others: %+v", c)
			}
			shown, err := exec.Command(binary, "keys", "show", "one", "--path", "/chat", "--admin", other.Admin).Output()
			for _, s := range c.Slots {
				if err != nil || !strings.Contains(string(shown), s.ID+"  chat ") {
					t.Errorf("%s isn't in %s: %v", s.ID, shown, err)
				}
			}
		})
	}
}

// If an operator releases the slot of a request that the gateway is still serving, the request takes a slot again, and
// releases it at its end.
func TestAReleasedSlotOfALivingRequest(t *testing.T) {
	t.Parallel()
	arrived, proceed := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-proceed
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: chat, algorithm: concurrency, limit: 2, slot_ttl: 3s, by: []}]\n")
	args := append(patient, "--rules", rules, "--store", "redis://"+redistest.New(t, redistest.Options{}).Addr)
	one, other := serve(t, append(args, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)...), serve(t, args...)
	reached(t, one, other)
	answered := make(chan int)
	go func() {
		res, err := http.Get(one.Gateway + "/chat")
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		res.Body.Close()
		answered <- res.StatusCode
	}()
	<-arrived
	c := slotsAt(t, other)
	if len(c.Slots) != 1 {
		t.Fatalf("%+v", c)
	}
	first := c.Slots[0]
	if status, text := post(t, http.DefaultClient, other.Admin+"/v1/counters/release", fmt.Sprintf(`{"slot": %q}`, first.ID)); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	until(t, func() error {
		if c = slotsAt(t, other); len(c.Slots) != 1 || c.Slots[0].ID != first.ID || !c.Slots[0].Since.After(first.Since) {
			return fmt.Errorf("%+v, before %+v", c.Slots, first)
		}
		return nil
	})
	close(proceed)
	if status := <-answered; status != 200 {
		t.Errorf("answered %d", status)
	}
	until(t, func() error {
		if c = slotsAt(t, other); len(c.Slots) != 0 {
			return fmt.Errorf("after its end %+v", c.Slots)
		}
		return nil
	})
}
