package region

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/redistest"
)

// TestHandshakes checks that both ends must prove that they have the secret, with TLS 1.3.
func TestHandshakes(t *testing.T) {
	of := func(s *Secret, change func(*tls.Config)) *tls.Config {
		config, err := s.TLS()
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(config)
		}
		return config
	}
	other := NewSecret([]byte(strings.Repeat("t", 32)))
	careless := func(c *tls.Config) { c.VerifyConnection = nil }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	stolen := of(secret, nil).Certificates[0].Certificate[0] // anyone who connects can see this
	for _, c := range []struct {
		name           string
		client, server *tls.Config
		fits           bool
	}{
		{"the same secret", of(secret, nil), of(secret, nil), true},
		{"a client with another one", of(other, careless), of(secret, nil), false},
		{"a server with another one", of(secret, nil), of(other, careless), false},
		{"a client without a certificate", of(secret, func(c *tls.Config) { c.Certificates = nil }), of(secret, nil), false},
		{"a client with another kind of key", of(other, func(c *tls.Config) {
			careless(c)
			c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
		}), of(secret, nil), false},
		{"a client that shows the right certificate after its own", of(other, func(c *tls.Config) {
			careless(c)
			c.Certificates[0].Certificate = append(c.Certificates[0].Certificate, stolen)
		}), of(secret, nil), false},
		{"a client that has only the right certificate", of(other, func(c *tls.Config) {
			careless(c)
			c.Certificates[0].Certificate = [][]byte{stolen}
		}), of(secret, nil), false},
		{"an older TLS", of(secret, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }), of(secret, nil), false},
	} {
		server := make(chan error, 1)
		go func() {
			b, err := listener.Accept()
			if err == nil {
				_, err = tls.Server(b, c.server).Write([]byte{1})
				b.Close()
			}
			server <- err
		}()
		a, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(tls.Client(a, c.client), make([]byte, 1)) // the client learns here that the server refused it
		a.Close()
		if fits := errors.Join(err, <-server) == nil; fits != c.fits {
			t.Errorf("%s: they understand each other: %v; %v", c.name, fits, err)
		}
	}
}

// TestSecretsOfFiles checks that blanks around a secret are ignored, also for its length.
func TestSecretsOfFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	for text, fits := range map[string]bool{
		strings.Repeat("s", 32):                  true,
		" " + strings.Repeat("s", 32) + "\r\n\n": true,
		strings.Repeat("s", 31):                  false,
		strings.Repeat("s", 31) + "\n":           false,
		"":                                       false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := ReadSecret(file)
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), file+": a secret has at least 32 bytes") {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && !s.key.Equal(secret.key) {
			t.Errorf("%q is another secret", text)
		}
	}
}

// TestNamesNeedTheSecret checks that without the secret, a name can't be linked to a client.
func TestNamesNeedTheSecret(t *testing.T) {
	name := func(s *Secret, policy uint64, subject string) string {
		return string(s.name(policy, []byte(subject)))
	}
	other := NewSecret([]byte(strings.Repeat("t", 32)))
	if name(secret, 1, "ada") == name(other, 1, "ada") {
		t.Error("names are the same under another secret")
	}
	if name(secret, 1, "ada") == name(secret, 2, "ada") || name(secret, 1, "ada") == name(secret, 1, "bob") {
		t.Error("two limits or two clients have one name")
	}
	if name(secret, 1, "ada") != name(NewSecret([]byte(strings.Repeat("s", 32))), 1, "ada") {
		t.Error("regions call one client differently")
	}
}

// TestAnswersThatMakeNoSense checks that responses from another version, and refusals of other regions, are errors.
func TestAnswersThatMakeNoSense(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	eu := sites[1]
	p := policyOf(t, "p", counter.PerHour(10), true)
	for _, c := range []struct {
		status     int
		text, says string
	}{
		{200, `{}`, "another version"},
		{200, `{"done": []}`, "another version"},
		{200, `{"done": [{}]}`, "another version"},
		{200, `{"done": [{"results": []}]}`, "another version"},
		{200, `{"done": [{"results": [{"Allowed": true}, {"Allowed": true}]}]}`, "another version"},
		{200, `{"done": [{"results": [{"Allowed": true}]}, {}]}`, "another version"},
		{200, `{"done": [{"results": [{"Allowed": true}], "failed": "no"}]}`, "region us: no"},
		{421, `{"done": [{"results": [{"Allowed": true}]}]}`, "421"},
		{503, "", "503"},
		{200, "", "JSON"},
	} {
		eu.link.peers["us"].client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: c.status, Status: fmt.Sprint(c.status), Body: io.NopCloser(strings.NewReader(c.text))}, nil
		})
		if r := take(eu, on(p, 1))[0]; r.Allowed || !errors.Is(r.Err, counter.ErrPartition) || !strings.Contains(r.Err.Error(), c.says) {
			t.Errorf("%d %s: %+v, want %q", c.status, c.text, r, c.says)
		}
		if _, err := eu.link.talk(t.Context(), "us", counterOf(p), &stake.Message{}); err == nil {
			t.Errorf("%d %s: no error of a talk", c.status, c.text)
		}
	}
}

// TestMessagesAreSentOnce checks that a message that may have been processed isn't sent again, even if the response is
// a redirect.
func TestMessagesAreSentOnce(t *testing.T) {
	eu := world(t, time.Now, "us", "eu")[1]
	sent := 0
	eu.link.peers["us"].client.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
		sent++
		return &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"https://other/"}}, Body: http.NoBody}, nil
	})
	if r := take(eu, on(policyOf(t, "p", counter.PerHour(10), true), 1))[0]; !errors.Is(r.Err, counter.ErrPartition) || sent != 1 {
		t.Errorf("%+v, sent %d times", r, sent)
	}
}

// TestLimitsThatArentShared checks that regions don't exchange messages about limits that aren't shared. A region that
// knows fewer peers might share a limit that others count at its home.
func TestLimitsThatArentShared(t *testing.T) {
	sites := world(t, time.Now, "us", "eu", "ap")
	for limit, shared := range map[int64]bool{47: false, 48: true} {
		p := sharedPolicy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: limit, Window: time.Hour})
		m := &stake.Message{Window: stake.Begun(p, time.Now().UnixMicro()), Need: 1, Held: &stake.Loan{ID: 1, Sent: 1}}
		answer, err := sites[1].link.talk(t.Context(), "us", counterOf(p), m)
		if (err == nil) != shared || shared && answer.Lent.Given == 0 || err != nil && !strings.Contains(err.Error(), "don't share this limit") {
			t.Errorf("%d in three regions: %+v, %v", limit, answer, err)
		}
	}
	p := sharedPolicy(t, "p", budget)
	p = p.With(func(d *counter.Definition) { d.GivesBack = true })
	if answer, err := sites[1].link.talk(t.Context(), "us", counterOf(p), &stake.Message{Need: 1, Held: &stake.Loan{ID: 1, Sent: 1}}); err == nil {
		t.Errorf("one with reservations that go back by themselves: %+v", answer)
	}
	for _, s := range sites {
		s.stakes.close()
	}
}

// TestSameRules checks that regions notice differences in their global rules, in the rules' homes, and in the regions
// that they know. Rules without a global scope may differ.
func TestSameRules(t *testing.T) {
	search := weir.Rule{ID: "search", Global: true, Limits: []counter.Limit{counter.PerMinute(100)}}
	own := weir.Rule{ID: "own", Limits: []counter.Limit{counter.PerMinute(100)}}
	with := func(r weir.Rule, change func(*weir.Rule)) weir.Rule {
		change(&r)
		return r
	}
	print := func(home string, peers []string, rules ...weir.Rule) string {
		set, err := weir.Compile(weir.Rules{Version: 1, Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Name: "us", Home: home, Secret: secret, Peers: map[string][]string{}}
		for _, name := range peers {
			o.Peers[name] = []string{name}
		}
		l, err := NewLink(o)
		if err != nil {
			t.Fatal(err)
		}
		l.limiter.Store(weir.NewLimiter(world(t, time.Now, "us")[0].own, set, weir.Options{}))
		return l.rules()
	}
	base := print("us", []string{"eu"}, search, own)
	for name, c := range map[string]struct {
		print string
		same  bool
	}{
		"another rule of its own":           {print("us", []string{"eu"}, search), true},
		"a rule that names the common home": {print("us", []string{"eu"}, with(search, func(r *weir.Rule) { r.Home = "us" })), true},
		"other numbers":                     {print("us", []string{"eu"}, with(search, func(r *weir.Rule) { r.Limits = []counter.Limit{counter.PerMinute(101)} })), false},
		"another home":                      {print("eu", []string{"eu"}, search), false},
		"a rule with another home":          {print("us", []string{"eu"}, with(search, func(r *weir.Rule) { r.Home = "eu" })), false},
		"another region":                    {print("us", []string{"eu", "ap"}, search), false},
		"no global rule":                    {print("us", []string{"eu"}, own), false},
	} {
		if (c.print == base) != c.same {
			t.Errorf("%s: the same is %v", name, !c.same)
		}
	}
}

// TestRulesThatChange checks that rules are compared again with every response.
func TestRulesThatChange(t *testing.T) {
	sites := world(t, time.Now, "us", "eu")
	us, eu := sites[0], sites[1]
	apply := func(s *site, n int64) {
		set, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{{ID: "r", Global: true, Limits: []counter.Limit{counter.PerMinute(n)}}}})
		if err != nil {
			t.Fatal(err)
		}
		s.link.limiter.Load().SetRules(set)
	}
	apply(us, 100)
	apply(eu, 100)
	for i, c := range []struct {
		s    *site
		n    int64
		same bool
	}{{us, 100, true}, {us, 200, false}, {eu, 200, true}, {eu, 300, false}, {us, 300, true}} {
		apply(c.s, c.n)
		if _, err := eu.link.peers["us"].say(t.Context(), &message{}); err != nil {
			t.Fatal(err)
		}
		if got := eu.link.Peers()[0].SameRules; got != c.same {
			t.Errorf("%d: %s has %d a minute now: the same is %v", i, c.s.link.name, c.n, got)
		}
	}
}

// TestBothEndsLearn checks that regions learn a new topology both from a message and from a response.
func TestBothEndsLearn(t *testing.T) {
	for _, teller := range []int{0, 1} {
		sites := world(t, time.Now, "us", "eu")
		if err := sites[teller].link.learn(t.Context(), &Topology{Epoch: 5, Homes: map[string]string{"us": "eu"}}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := sites[1].link.peers["us"].say(t.Context(), &message{}); err != nil {
			t.Fatal(err)
		}
		for _, s := range sites {
			if h := s.link.Here(); h.Epoch != 5 || h.Home != "eu" {
				t.Errorf("%s: %+v", s.link.name, h)
			}
		}
		if s := sites[1].link.Peers()[0]; s.Epoch != 5 || s.Home {
			t.Errorf("us: %+v", s)
		}
	}
}

// TestNextAddress checks that if a node doesn't respond, the next address is tried, and used from then on.
func TestNextAddress(t *testing.T) {
	us := world(t, time.Now, "us", "eu")[0]
	link, err := NewLink(Options{Name: "eu", Home: "us", Secret: secret, Peers: map[string][]string{"us": {"a", "b", "c"}}})
	if err != nil {
		t.Fatal(err)
	}
	dead, asked := map[string]bool{"a": true}, ""
	p := link.peers["us"]
	p.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if asked += r.URL.Host; dead[r.URL.Host] {
			return nil, errors.New("dead")
		}
		text, err := json.Marshal(answer{From: "us", Topology: us.link.topology().told(), Rules: us.link.rules()})
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(text))}, err
	})
	for i := range 8 {
		if i == 3 {
			dead = map[string]bool{"b": true, "c": true}
		}
		_, _ = p.say(t.Context(), &message{})
	}
	if asked != "abbbcaaa" {
		t.Errorf("asked %s", asked)
	}
}

// TestRegionsFarApart checks that regions can connect even if a handshake takes longer than a heartbeat's timeout, as
// long as checks may wait that long.
func TestRegionsFarApart(t *testing.T) {
	us := world(t, time.Now, "us", "eu")[0]
	server := httptest.NewUnstartedServer(us.link)
	config, err := secret.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server.TLS, server.EnableHTTP2 = config, true
	server.StartTLS()
	defer server.Close()
	way := redistest.NewProxy(t, server.Listener.Addr().String())
	if err := way.Delay(beatEvery + 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	link, err := NewLink(Options{Name: "eu", Home: "us", Secret: secret, Peers: map[string][]string{"us": {way.Addr}}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	p := link.peers["us"]
	defer p.client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), link.beatFor())
	defer cancel()
	if _, err := p.say(ctx, &message{}); err != nil || !p.status().Up {
		t.Errorf("a region that is far away isn't heard: %v", err)
	}
}
