package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/server/test/gateways"
)

// proxied is a group of workers that send POST requests through a proxy, each on one connection.
type proxied struct {
	name, url, want string
	served          sync.Map // node's address → number of requests that it served, an *atomic.Int64
}

func (p *proxied) count(node string) *atomic.Int64 {
	v, _ := p.served.LoadOrStore(node, new(atomic.Int64))
	return v.(*atomic.Int64)
}

func (p *proxied) work(t *testing.T, stop <-chan struct{}) {
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-stop:
			return
		default:
		}
		res, err := client.Post(p.url, "application/json", strings.NewReader(`{"key": "k"}`))
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			return
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.HasPrefix(string(text), p.want) {
			t.Errorf("%s: %s %q, %v", p.name, res.Status, text, err)
			return
		}
		p.count(res.Header.Get("X-Served-By")).Add(1)
	}
}

// All nodes restart, one after the other, behind HAProxy and nginx with the settings from docs/guides/upgrade.md. No
// request fails.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: all, limit: 1000000/second}\n")

	// These addresses aren't used by any other process, so a node's port stays free while the node is down.
	network := loopback.Host()
	network = network[:strings.LastIndexByte(network, '.')+1]
	port := func() string {
		l, err := net.Listen("tcp", network+"1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return port
	}
	check, gateway := port(), port()
	begin := func(host string) *node {
		return serve(t, "--rules", rules, "--drain-notice", "1s", "--http", network+host+":"+check, "--gateway", network+host+":"+gateway, "--upstream", upstream.URL)
	}
	nodes := map[string]*node{"1": begin("1"), "2": begin("2")}

	page, err := os.ReadFile("../docs/guides/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	haproxy, nginx := gateways.Blocks(string(page), "haproxy"), gateways.Blocks(string(page), "nginx")
	if len(haproxy) != 1 || len(nginx) != 1 {
		t.Fatal("the page has other examples")
	}
	var all []*proxied
	for _, to := range []struct{ port, path, want string }{{check, "/v1/check", `{"allowed":true`}, {gateway, "/", `{"key": "k"}`}} {
		for i, name := range []string{"haproxy", "nginx"} {
			at := fmt.Sprintf("%s%d:%s", network, 3+i, to.port)
			in := func(conf string, change ...string) string {
				for i := 0; i < len(change); i += 2 {
					if !strings.Contains(conf, change[i]) {
						t.Fatalf("the example has no %q", change[i])
					}
				}
				return strings.NewReplacer(append(change, "10.0.0.", network, ":8080", ":"+to.port)...).Replace(conf)
			}
			files, command := map[string]string{"haproxy.cfg": "defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n    timeout check 60s\n" +
				"frontend web\n    bind " + at + "\n    default_backend weir\n" +
				in(haproxy[0], "check inter 1s", "check port "+check+" inter 100ms", "http-reuse always", "http-reuse always\n    http-response set-header X-Served-By %si")},
				[]string{"haproxy", "-db", "-f", "haproxy.cfg"}
			if name == "nginx" {
				files = map[string]string{"nginx.conf": "daemon off; worker_processes 1; pid nginx.pid; error_log /dev/null crit;\nevents { worker_connections 256; }\n" +
					"http {\naccess_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n" +
					in(nginx[0], "listen 80;", "listen "+at+"; add_header X-Served-By $upstream_addr;") + "}\n"}
				command = []string{"nginx", "-p", ".", "-c", "nginx.conf", "-e", "/dev/null"}
			}
			stop, err := gateways.Run(files, command...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
			all = append(all, &proxied{name: name + " to " + to.path, url: "http://" + at + to.path, want: to.want})
		}
	}
	for _, p := range all {
		until(t, func() error {
			res, err := http.Post(p.url, "application/json", strings.NewReader(`{"key": "k"}`))
			if err == nil {
				res.Body.Close()
			}
			return err
		})
	}

	stop := make(chan struct{})
	var workers sync.WaitGroup
	for _, p := range all {
		for range 3 {
			workers.Go(func() { p.work(t, stop) })
		}
	}
	// used waits until every proxy sends requests to a node.
	used := func(host string) {
		for _, p := range all {
			total := func() (n int64) {
				p.served.Range(func(at, count any) bool {
					// nginx lists all the nodes that it has tried. The last one has responded.
					tried := strings.Split(at.(string), ", ")
					if last, _, _ := strings.Cut(tried[len(tried)-1], ":"); last == network+host {
						n += count.(*atomic.Int64).Load()
					}
					return true
				})
				return n
			}
			before := total()
			until(t, func() error {
				if t.Failed() || total() > before {
					return nil
				}
				return fmt.Errorf("%s sends nothing to node %s", p.name, host)
			})
		}
	}
	for _, host := range []string{"1", "2", "1"} {
		used("1")
		used("2")
		nodes[host].stop()
		if err := <-nodes[host].exited; err != nil {
			t.Error(err)
		}
		nodes[host] = begin(host)
	}
	used("1")
	close(stop)
	workers.Wait()
}
