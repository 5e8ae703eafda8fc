// Package paths sends paths in many spellings to real servers. To whatever route a server takes a request, Weir must
// have charged that route's limit.
package paths

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/gateway"
	"github.com/weirhq/weir/server/test/gateways"
)

// patience is how long a server may take to respond before the test fails. The fuzzer itself waits for 10 s.
const patience = 9 * time.Second

// routes are the routes of every server. A server reports a request's route in X-Route.
var routes = []string{"login", "search", "v1"}

// rules returns the rules of the test. If a server takes a request to a route, all rules whose ids begin with the
// route's name must have applied.
func rules() weir.Rules {
	of := func(id, layer string, m weir.Match) weir.Rule {
		return weir.Rule{ID: id, Layer: layer, Match: m, By: []string{"ip"}, Limits: []weir.Limit{{Count: 1e9, Window: time.Hour}}}
	}
	return weir.Rules{Rules: []weir.Rule{
		of("login-endpoint", "", weir.Match{Endpoint: "/login"}),
		of("login-regex", "", weir.Match{EndpointRegex: "^/login$"}),
		of("login-both", "", weir.Match{Endpoint: "/{page}", EndpointRegex: "login"}),
		of("login-layer", "layer", weir.Match{Endpoint: "/login"}),
		of("search-endpoint", "", weir.Match{Endpoint: "GET /search/{q}"}),
		of("search-regex", "", weir.Match{EndpointRegex: "^/search/[^/]+$"}),
		of("search-layer", "layer", weir.Match{Endpoint: "/search/{q}"}),
		of("v1-endpoint", "", weir.Match{Endpoint: "/v1/"}),
		of("v1-regex", "", weir.Match{EndpointRegex: "^/v1/"}),
		of("v1-layer", "layer", weir.Match{Endpoint: "/v1/{rest...}"}),
		of("rest", "layer", weir.Match{}),
	}}
}

// door is a path to a server through Weir. It carries one request at a time.
type door struct {
	name    string
	addr    string
	conn    net.Conn
	in      *bufio.Reader
	h2      *http.Transport               // used instead of conn for HTTP/2
	decided atomic.Pointer[weir.Decision] // Weir's decision about the last request
	reached map[string]int                // number of requests by route
	refused int                           // number of requests whose path Weir refused to read
}

// limiter returns a limiter that records the door's decisions.
func (d *door) limiter(set *weir.RuleSet) *weir.Limiter {
	return weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Observe: func(o *weir.Observation) {
		c := *o.Decision
		d.decided.Store(&c)
	}})
}

// limit returns the door's middleware.
func (d *door) limit(set *weir.RuleSet) *httplimit.Middleware {
	return httplimit.New(d.limiter(set), httplimit.Options{})
}

// open starts the servers, with Weir in front of each, once per process. Fuzzing uses several processes.
var open = sync.OnceValues(func() (doors []*door, err error) {
	set, err := weir.Compile(rules())
	if err != nil {
		return nil, err
	}
	node, err := startNode()
	if err != nil {
		return nil, err
	}
	mux := serve(serveMux(""))
	nginx, err := startNginx(map[string]string{"express": node["express"], "servemux": mux})
	if err != nil {
		return nil, err
	}
	upstreams := map[string]string{"servemux": mux, "path.Clean": serve(byCleanPath)}
	for name, addr := range node {
		upstreams[name] = addr
	}
	for name, addr := range nginx {
		upstreams[name] = addr
	}
	add := func(name, upstream string, opts gateway.Options) error {
		u, err := url.Parse("http://" + upstream)
		if err != nil {
			return err
		}
		d := &door{name: name, reached: map[string]int{}}
		opts.Upstream, opts.Limit = u, d.limit(set)
		g, err := gateway.New(opts)
		if err != nil {
			return err
		}
		d.addr, doors = serve(g), append(doors, d)
		return nil
	}
	for name, addr := range upstreams {
		if err := add(name, addr, gateway.Options{AllowUnsafePaths: true}); err != nil {
			return nil, err
		}
	}
	if err := add("servemux below a path", serve(serveMux("/base"))+"/base", gateway.Options{}); err != nil {
		return nil, err
	}
	d := &door{name: "servemux behind the middleware", reached: map[string]int{}}
	d.addr = serve(d.limit(set).Wrap(serveMux("")))
	doors = append(doors, d)
	// These are third-party gateways that ask Weir. They forward the path that they asked about, so two upstreams are
	// enough.
	for _, g := range gateways.All() {
		for _, name := range []string{"express", "path.Clean"} {
			d := &door{name: g.Name + ", which asks, before " + name, reached: map[string]int{}}
			asked := http.NewServeMux()
			asked.Handle("/", forwardauth.New(d.limiter(set), forwardauth.Options{}))
			asked.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {}) // for HAProxy
			addr, stop, err := g.Start("../../docs", upstreams[name], serve(asked))
			if err != nil {
				return nil, err
			}
			children = append(children, closer(stop))
			d.addr, doors = addr, append(doors, d)
			if g.H2C && name == "path.Clean" {
				d.h2 = &http.Transport{Protocols: new(http.Protocols)}
				d.h2.Protocols.SetUnencryptedHTTP2(true)
				d.name += ", over HTTP/2"
			}
		}
	}
	return doors, nil
})

// closer stops a gateway. The gateway also stops when this process ends.
type closer func()

func (c closer) Close() error { c(); return nil }

// children are the standard inputs of processes that were started. Each process ends when its input closes, which also
// happens when this process ends in any way.
var children []io.Closer

func start(cmd *exec.Cmd) error {
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	children = append(children, in)
	cmd.Stderr = os.Stderr
	return cmd.Start()
}

// serve starts a server in this process.
func serve(h http.Handler) string {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.MaxHeaderBytes = gateway.MaxHeaderBytes
	s.Start()
	return s.Listener.Addr().String()
}

func route(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Route", name) }
}

func serveMux(prefix string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(prefix+"/login", route("login"))
	mux.Handle("GET "+prefix+"/search/{q}", route("search"))
	mux.Handle(prefix+"/v1/", route("v1"))
	return mux
}

// byCleanPath is a router that uses the decoded path, like many routers.
var byCleanPath = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	p := path.Clean(r.URL.Path)
	q, search := strings.CutPrefix(p, "/search/")
	switch {
	case p == "/login":
		w.Header().Set("X-Route", "login")
	case search && !strings.Contains(q, "/"):
		w.Header().Set("X-Route", "search")
	case strings.HasPrefix(p, "/v1/"):
		w.Header().Set("X-Route", "v1")
	}
})

// startNode starts upstreams.js and returns its servers' addresses.
func startNode() (map[string]string, error) {
	if _, err := os.Stat("node_modules/express"); err != nil {
		return nil, fmt.Errorf("express isn't there: run `make upstreams`, which installs it: %w", err)
	}
	cmd := exec.Command("node", "upstreams.js")
	cmd.Env = append(os.Environ(), "NODE_ENV=test") // so that Express doesn't print its errors
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := start(cmd); err != nil {
		return nil, err
	}
	var ports map[string]int
	if err := json.NewDecoder(out).Decode(&ports); err != nil {
		return nil, fmt.Errorf("upstreams.js: %w", err)
	}
	addrs := map[string]string{}
	for name, port := range ports {
		addrs[name] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs, nil
}

const nginxConf = `
daemon off; worker_processes 1; pid nginx.pid; error_log /dev/null crit;
events { worker_connections 256; }
http {
	access_log off; keepalive_requests 1000000000; large_client_header_buffers 4 32k;
	client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
	server { listen %[1]s; include routes; }
	server { listen %[2]s; merge_slashes off; include routes; }
	# With a path behind the host, nginx passes on what it made of the path; without, what came.
	server { listen %[3]s; location / { proxy_pass http://%[5]s/; } }
	server { listen %[4]s; location / { proxy_pass http://%[6]s/; } }
}`

const nginxRoutes = `
location = /login { add_header X-Route login; return 200; }
location ~ ^/login$ { add_header X-Route login; return 200; }
location ~ ^/search/[^/]+/?$ { add_header X-Route search; return 200; }
location /v1/ { add_header X-Route v1; return 200; }
location / { return 404; }`

// startNginx starts nginx with its own routes, and also in front of other upstreams.
func startNginx(behind map[string]string) (map[string]string, error) {
	dir, err := os.MkdirTemp("", "weir-nginx-")
	if err != nil {
		return nil, err
	}
	// nginx inherits its listening sockets, so that no other process can take its ports.
	var ports []string
	var sockets []*os.File
	for range 4 {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return nil, err
		}
		f, err := l.File()
		if err != nil {
			return nil, err
		}
		ports, sockets = append(ports, l.Addr().String()), append(sockets, f)
		defer func() { _, _ = l.Close(), f.Close() }()
	}
	conf := fmt.Sprintf(nginxConf, ports[0], ports[1], ports[2], ports[3], behind["express"], behind["servemux"])
	for name, text := range map[string]string{"nginx.conf": conf, "routes": nginxRoutes} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	// The shell stops nginx when its own input closes.
	cmd := exec.Command("sh", "-c", `PATH=$PATH:/usr/sbin; nginx -p "$0" -c nginx.conf -e /dev/null </dev/null & read -r _; kill $!; wait; rm -rf "$0"`, dir)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "NGINX=3;4;5;6;"), sockets
	if err := start(cmd); err != nil {
		return nil, err
	}
	return map[string]string{"nginx": ports[0], "nginx, slashes kept": ports[1], "nginx before express": ports[2], "nginx before servemux": ports[3]}, nil
}

// send sends a target exactly as given, and returns the name of the route that it reached, or "".
func (d *door) send(target string) (string, error) {
	if d.h2 != nil {
		return d.send2(target)
	}
	if d.conn == nil {
		conn, err := net.Dial("tcp", d.addr)
		if err != nil {
			return "", err
		}
		d.conn, d.in = conn, bufio.NewReader(conn)
	}
	if err := d.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	_, err := io.WriteString(d.conn, "GET "+target+" HTTP/1.1\r\nHost: shop.example\r\n\r\n")
	if err != nil {
		return "", errors.Join(err, d.hangUp())
	}
	res, err := http.ReadResponse(d.in, nil)
	if err != nil {
		return "", errors.Join(err, d.hangUp())
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Close {
		return "", errors.Join(err, d.hangUp())
	}
	return res.Header.Get("X-Route"), nil
}

// send2 does the same over HTTP/2.
func (d *door) send2(target string) (string, error) {
	if !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") || strings.Contains(target, "#") || !utf8.ValidString(target) {
		return "", nil // net/http doesn't send these, or HAProxy doesn't respond to them
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req := (&http.Request{Method: "GET", Header: http.Header{}, URL: &url.URL{Scheme: "http", Host: d.addr, Opaque: target}}).WithContext(ctx)
	res, err := d.h2.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.Header.Get("X-Route"), err
}

func (d *door) hangUp() error {
	err := d.conn.Close()
	d.conn = nil
	return err
}

// try sends targets and reports those that get past a limit.
func (d *door) try(t testing.TB, targets ...string) {
	for _, target := range targets {
		d.decided.Store(&weir.Decision{})
		name, err := d.send(target)
		if err != nil {
			t.Errorf("%s: %q: %v", d.name, target, err)
			return
		}
		decided := d.decided.Load()
		if decided.Reason == weir.ReasonUnreadablePath {
			d.refused++
		}
		if name == "" {
			continue
		}
		d.reached[name]++
		if missed := missing(name, decided); missed != "" {
			t.Errorf("%s took %q to %s, past the limit of rule %s", d.name, target, name, missed)
		}
	}
}

// tryAll sends targets through all doors in parallel.
func tryAll(t testing.TB, doors []*door, targets ...string) {
	targets = slices.DeleteFunc(targets, func(target string) bool {
		_, err := url.ParseRequestURI(target)
		return err != nil // net/http refuses these before Weir sees them, and closes the connection
	})
	var all sync.WaitGroup
	for _, d := range doors {
		all.Go(func() { d.try(t, targets...) })
	}
	all.Wait()
}

// missing returns the first rule of a route that a decision didn't charge, or "".
func missing(route string, d *weir.Decision) string {
	charged := map[string]bool{}
	for _, s := range d.Limits() {
		charged[s.Policy.Rule] = true
	}
	for _, r := range rules().Rules {
		if strings.HasPrefix(r.ID, route+"-") && !charged[r.ID] {
			return r.ID
		}
	}
	return ""
}
