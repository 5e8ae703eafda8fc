package gateway

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

func (r *room) held() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clients.All()
}

// attackers is the number of clients whose bodies of 1 MiB together exceed the room.
const attackers = maxRoom/maxHead + 2

// priced starts a gateway with a budget of 100 usd that all clients share. The model small costs 1 usd per million
// tokens, and large 100. Other models cost as much as large if others is set, and otherwise have no price. The key
// sk_blocked is on the deny list.
func priced(t *testing.T, others bool, handled chan<- struct{}) (d *door, budget func() string) {
	t.Helper()
	price := func(model string, usd int64) weir.Sum {
		return weir.Sum{Name: model, Parts: []weir.Weight{{Amount: "input", Each: usd * 1_000_000}, {Amount: "output", Each: usd * 1_000_000}}}
	}
	rules := weir.Rules{
		Deny:   []string{"sk_blocked"},
		Prices: []weir.Sum{price("small", 1), price("large", 100)},
		Rules: []weir.Rule{{
			ID: "budget", By: []string{}, Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 100, Window: 24 * time.Hour}},
		}},
	}
	if others {
		rules.Prices = append(rules.Prices, price("*", 100))
	}
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
	d, _ = metering(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		jsonAnswer(`{"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}`)(w, r)
	}, setup{
		limiter: l, handled: handled,
		limit: httplimit.Options{Identity: httplimit.Identity{KnownKeys: httplimit.KnownKeys{sha256.Sum256([]byte("sk_known")): {}}}},
		opts:  Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	return d, func() string { return left(t, l)["budget"] }
}

// stallBodies opens connections that send nearly 1 MiB of JSON, all but the last byte, and then stall.
func stallBodies(t *testing.T, d *door, header func(i int) string) {
	t.Helper()
	body := `{"messages": "` + strings.Repeat("a", maxHead)
	for i := range attackers {
		conn := d.dial(t)
		go func() { // in a goroutine, because the gateway may stop reading
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
				header(i), maxHead-1, body[:maxHead-2])
		}()
	}
}

// callAs calls a model with chat's body, and returns the response.
func (d *door) callAs(t *testing.T, model, key, ip string) answer {
	t.Helper()
	req := d.request(t, "POST", "/v1/chat/completions", strings.NewReader(strings.Replace(chat, "gpt-small", model, 1)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", key)
	req.Header.Set("X-Forwarded-For", ip)
	return d.doWhole(t, req)
}

// A blocked client is refused before any of its body is read, so it can't take the room that other clients' calls need.
func TestBlockedClientsTakeNoRoom(t *testing.T) {
	for _, others := range []bool{true, false} {
		handled := make(chan struct{}, 2*attackers)
		d, budget := priced(t, others, handled)
		stallBodies(t, d, func(int) string { return "X-Api-Key: sk_blocked\r\n" })
		for range attackers {
			await(t, handled, "the refusal of a blocked client")
		}
		d.gateway.room.mu.Lock()
		if !reflect.ValueOf(&d.gateway.room.addresses).Elem().IsZero() { // any use leaves a trace
			t.Error("a blocked client's body was read")
		}
		d.gateway.room.mu.Unlock()
		if a := d.callAs(t, "small", "sk_1", "203.0.113.9"); a.StatusCode != 200 || budget() != "99.999988" {
			t.Errorf("price for other models %t: %s, %s usd left", others, a.Status, budget())
		}
		if a := d.callAs(t, "large", "sk_1", "203.0.113.9"); a.StatusCode != 200 || budget() != "99.998788" {
			t.Errorf("price for other models %t: %s, %s usd left", others, a.Status, budget())
		}
	}
}

// If one address stalls as many bodies as it can, each with a new key, other addresses and verified clients still find
// room. Their calls are billed at the price of their model.
func TestStalledBodiesLeaveRoom(t *testing.T) {
	for _, others := range []bool{true, false} {
		handled := make(chan struct{}, 2*attackers)
		d, budget := priced(t, others, handled)
		stallBodies(t, d, func(i int) string { return fmt.Sprintf("X-Api-Key: sk_%d\r\nX-Forwarded-For: 198.51.100.1\r\n", i) })
		deadline := time.Now().Add(patience)
		for {
			refused := len(handled)
			if held := d.gateway.room.held(); held == int64(attackers-refused)*maxHead {
				if held == 0 || held > maxRoom/5 {
					t.Errorf("one address holds %d MiB", held>>20)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d requests were refused, and the room holds %d bytes", refused, d.gateway.room.held())
			}
			time.Sleep(time.Millisecond)
		}
		if a := d.callAs(t, "small", "sk_1", "203.0.113.9"); a.StatusCode != 200 || budget() != "99.999988" {
			t.Errorf("another address, price for other models %t: %s, %s usd left", others, a.Status, budget())
		}
		if a := d.callAs(t, "large", "sk_known", "198.51.100.1"); a.StatusCode != 200 || budget() != "99.998788" {
			t.Errorf("a verified client, price for other models %t: %s, %s usd left", others, a.Status, budget())
		}
	}
}

// pipeWriter is the response to a client at the other end of a pipe.
type pipeWriter struct {
	*httptest.ResponseRecorder
	net.Conn
}

func (w pipeWriter) Write(p []byte) (int, error) { return w.ResponseRecorder.Write(p) }

// A large body that stalls or only drips soon loses its room. Small bodies have longer, and large ones that make
// progress keep their room.
func TestLargeBodiesLoseTheirRoomSoon(t *testing.T) {
	for name, c := range map[string]struct {
		begin, part int // bytes sent at first, and then in each part
		every       time.Duration
		lasts       time.Duration // until the gateway gives up, in whole seconds, or zero if it doesn't
	}{
		"stalls":            {maxHead - 1000, 0, 0, headStall},
		"drips":             {maxHead - 1000, 1, time.Second, headStall},
		"makes progress":    {maxHead - 1000, 20, time.Second / 100, 0},
		"small, and stalls": {3000, 0, 0, time.Minute},
		"small, and drips":  {3000, 1, time.Second, time.Minute},
		"small, and slow":   {3000, 5000, 10 * time.Second, 0},
		"slow":              {0, 100_000, 4 * time.Second, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			up, down := net.Pipe()
			g := &Gateway{stall: time.Minute}
			r := httptest.NewRequest("POST", "/", down)
			if r.ContentLength = maxHead; c.begin > 0 && c.begin < smallHead {
				r.ContentLength = smallHead
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for n, err := up.Write(make([]byte, c.begin)); err == nil && n < int(r.ContentLength); {
					if c.part == 0 {
						return
					}
					time.Sleep(c.every)
					_, err = up.Write(make([]byte, c.part))
					n += c.part
				}
				up.Close()
			})
			begun := time.Now()
			w := httptest.NewRecorder()
			call := &modelCall{}
			read := g.readHead(pipeWriter{w, down}, r, httplimit.Client{}, call)
			switch took := time.Since(begun).Round(time.Second); {
			case read != (c.lasts == 0), c.lasts != 0 && took != c.lasts:
				t.Errorf("%s: whole %t after %s, %d", name, read, took, w.Code)
			case read:
				call.release()
			}
			if n := g.room.held(); n != 0 {
				t.Errorf("%s: %d bytes are held", name, n)
			}
			down.Close()
			wg.Wait()
		})
	}
}

// A call for which there is no room is refused. It is never forwarded unread.
func TestNoRoomForABody(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		var told []weir.Reason
		l := limiterOf(t, weir.Options{Observe: func(o *weir.Observation) {
			if !o.Request.Peek {
				told = append(told, o.Decision.Reason)
			}
		}}, daily("tokens", 1000))
		d, up := metering(t, jsonAnswer(`{"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}`), setup{limiter: l, tls: h2})
		local := &httplimit.Client{Address: netip.MustParsePrefix("127.0.0.1/32")}
		if !d.gateway.room.take(local, maxRoom/5) {
			t.Fatal("no room")
		}
		a := d.ask(t, "/v1/chat/completions", chat)
		if a.StatusCode != 503 || !strings.Contains(a.body, `"OVERLOADED"`) || a.Header.Get("Retry-After") != "1" {
			t.Errorf("%s %s %v", a.Status, a.body, a.Header)
		}
		if len(up.requests()) != 0 || left(t, l)["tokens"] != "1000" || len(told) != 1 || told[0] != weir.ReasonOverloaded {
			t.Errorf("%d requests reached the upstream, %s tokens are left, observers saw %v", len(up.requests()), left(t, l)["tokens"], told)
		}
		d.gateway.room.give(local, maxRoom/5)
		if a := d.ask(t, "/v1/chat/completions", chat); a.StatusCode != 200 || left(t, l)["tokens"] != "988" {
			t.Errorf("afterwards: %s, %s tokens left", a.Status, left(t, l)["tokens"])
		}
	}
}

// However many addresses and keys attackers have, a new client finds some room.
func TestSharesOfTheRoom(t *testing.T) {
	var r room
	address := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	fill := func(c *httplimit.Client) (n int64) {
		for r.take(c, 4<<10) {
			n += 4 << 10
		}
		return n
	}
	if n := fill(&httplimit.Client{Address: address(1), ID: "a"}); n>>20 != 7 {
		t.Errorf("a client alone takes %d MiB", n>>20)
	}
	for i := range 1000 {
		fill(&httplimit.Client{Address: address(1), ID: fmt.Sprint(i)})
	}
	if n := r.held(); n>>20 != 12 {
		t.Errorf("an address with 1000 keys takes %d MiB", n>>20)
	}
	if n := fill(&httplimit.Client{Address: address(1), ID: "verified", Verified: true}); n>>20 != 10 {
		t.Errorf("a verified client behind that address takes %d MiB", n>>20)
	}
	for i := range 20 {
		fill(&httplimit.Client{Address: address(2 + i)})
	}
	if !r.take(&httplimit.Client{Address: address(200)}, 64<<10) {
		t.Error("there is no room for a new client")
	}
}
