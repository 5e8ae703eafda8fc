package imports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

// startNginx runs nginx with a configuration inside http { }, and returns its address.
func startNginx(t *testing.T, inHTTP string) (addr, conf string) {
	t.Helper()
	// An IP address of its own, because the port of a shared one might be given away again before nginx has it.
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	conf = filepath.Join(dir, "nginx.conf")
	text := "daemon off; worker_processes 1; pid nginx.pid; error_log /dev/null crit;\nevents { worker_connections 256; }\nhttp {\naccess_log off; limit_req_status 429;\n" +
		"client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n" +
		strings.ReplaceAll(inHTTP, "listen 80", "root "+dir+"; listen "+addr) + "\n}\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-p", dir, "-c", "nginx.conf", "-e", "/dev/null")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return addr, conf
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// imported returns a limiter with the imported rules of a configuration.
func imported(t *testing.T, conf string) (*weir.Limiter, *Result) {
	t.Helper()
	r, err := Nginx(conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := rulefile.Parse("rules.yaml", r.Text)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.Text)
	}
	return weir.NewLimiter(memstore.New(memstore.Options{}), f.Set, weir.Options{}), r
}

const zones = `
limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
limit_req_zone $binary_remote_addr zone=two:1m rate=2r/m;
limit_req_zone $http_x_api_key zone=keys:1m rate=1r/m;
limit_req_zone $http_x_api_key$binary_remote_addr zone=both:1m rate=1r/m;
`

// TestNginxAdmitsAsMany sends the same requests to nginx and to the imported rules. The rates are so low that only
// bursts matter.
func TestNginxAdmitsAsMany(t *testing.T) {
	for name, c := range map[string]struct {
		conf string
		asks []string // path, and a key after a space
	}{
		"bursts": {zones + `server { listen 80;
			location /none { limit_req zone=one; }
			location /five { limit_req zone=two burst=5 nodelay; }
		}`, []string{"/none", "/five", "/else"}},
		"inherited": {zones + `limit_req zone=one burst=3 nodelay; server { listen 80; location /a { } location /b { } }`, []string{"/a", "/b", "/c"}},
		"overridden": {zones + `server { listen 80; limit_req zone=one burst=4 nodelay;
			location /login { limit_req zone=two burst=1 nodelay; }
			location = /exact { limit_req zone=keys burst=2 nodelay; }
		}`, []string{"/login", "/login/x", "/exact k", "/exact l", "/exact", "/exacter", "/other"}},
		"several": {zones + `server { listen 80; limit_req zone=one burst=9 nodelay; limit_req zone=keys burst=2 nodelay;
			location /single { limit_req zone=two burst=3 nodelay; }
		}`, []string{"/x k", "/x l", "/single k", "/x"}},
		"by both": {zones + `server { listen 80; limit_req zone=both burst=2 nodelay; }`, []string{"/x k", "/x l", "/y k"}},
		"preference": {zones + `server { listen 80;
			location / { limit_req zone=one burst=1 nodelay; }
			location /static/ { }
			location ^~ /img/ { limit_req zone=two burst=2 nodelay; }
			location ~ \.php$ { limit_req zone=keys burst=3 nodelay; }
			location ~* ^/api/(v1|v2)/ { limit_req zone=both burst=4 nodelay; }
		}`, []string{"/x", "/static/x", "/img/x.php k", "/static/a.php k", "/a.php k", "/API/v2/x k", "/api/v3"}},
		"one zone in two places": {zones + `server { listen 80;
			location /a/ { limit_req zone=one burst=3 nodelay; }
			location ~ ^/b { limit_req zone=one burst=3 nodelay; }
		}`, []string{"/a/x", "/b", "/c"}},
		"dry run": {zones + `server { listen 80; limit_req zone=one burst=1 nodelay; limit_req_dry_run on; location /real { limit_req zone=two; limit_req_dry_run off; } }`, []string{"/x", "/real"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, conf := startNginx(t, c.conf)
			l, r := imported(t, conf)
			if i := slices.IndexFunc(r.Notes, func(n Note) bool { return n.Differs }); i >= 0 {
				t.Fatalf("%v", r.Notes[i])
			}
			want, got := map[string]int{}, map[string]int{}
			for range 12 {
				for _, ask := range c.asks { // in turn, so that shared limits show
					path, key, _ := strings.Cut(ask, " ")
					if status := get(t, t.Context(), addr, path, key); status != http.StatusTooManyRequests {
						want[ask]++
					}
					d, err := l.Check(t.Context(), &weir.Request{Method: "GET", Path: path, IP: netip.MustParseAddr("127.0.0.1"), Attr: func(name string) string {
						if name == "header:X-Api-Key" {
							return key
						}
						return ""
					}})
					if err != nil {
						t.Fatal(err)
					}
					if d.Allowed {
						got[ask]++
					}
				}
			}
			for _, ask := range c.asks {
				if got[ask] != want[ask] {
					t.Errorf("%s: Weir admits %d of 12, nginx %d\n%s", ask, got[ask], want[ask], r.Text)
				}
			}
		})
	}
}

func get(t *testing.T, ctx context.Context, addr, path, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if errors.Is(err, context.Canceled) {
		return 0
	}
	if err != nil {
		t.Error(err)
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// TestNginxQueuesAsMany checks that without nodelay, requests beyond the first wait, and requests beyond the burst are
// refused.
func TestNginxQueuesAsMany(t *testing.T) {
	addr, conf := startNginx(t, zones+"server { listen 80; limit_req zone=one burst=3; }")
	l, r := imported(t, conf)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const all, waiting = 10, 3
	statuses := make(chan int, all)
	for range all {
		go func() { statuses <- get(t, ctx, addr, "/", "") }()
	}
	refused := 0
	for range all - waiting {
		if <-statuses == http.StatusTooManyRequests {
			refused++
		}
	}
	cancel() // the others would wait for minutes
	for range waiting {
		if status := <-statuses; status != 0 {
			t.Errorf("a request that waits was answered: %d", status)
		}
	}
	mine, delays := 0, []time.Duration{}
	for range all {
		d, err := l.Check(t.Context(), &weir.Request{IP: netip.MustParseAddr("127.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			mine++
		} else {
			delays = append(delays, d.Delay.Round(time.Minute))
		}
	}
	if mine != refused || mine != 6 || fmt.Sprint(delays) != "[0s 1m0s 2m0s 3m0s]" {
		t.Errorf("nginx refuses %d, Weir %d, and has them wait %v\n%s", refused, mine, delays, r.Text)
	}
}

// TestNginxReport checks the report on what can't be imported exactly.
func TestNginxReport(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("sites/a.conf", "server { server_name a; limit_req zone=one burst=1 nodelay; location /x { limit_req zone=wl burst=8 delay=3; } }\n")
	write("sites/b.conf", "server { server_name b; limit_req zone=args; limit_conn per 3; }\n")
	conf := write("nginx.conf", `events {}
http {
  limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;
  limit_req_zone $limit_key zone=wl:10m rate=30r/m;
  limit_req_zone $arg_token zone=args:10m rate=5r/s;
  limit_req_zone "$server_name$request_uri" zone=idle:10m rate=5r/s;
  geo $limited { default 1; 10.0.0.0/8 0; "192.168.0.0/16" 0; 172.16.0.0/12 1; }
  map $limited $limit_key { 0 ""; 1 $binary_remote_addr; }
  auth_basic_user_file /etc/secret; set $password "hunter2 { ; }"; # a comment { with
  include sites/*.conf;
  include missing.conf;
}
`)
	r, err := Nginx(conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, n := range r.Notes {
		notes = append(notes, n.String())
	}
	for _, want := range []string{
		"nginx.conf:11: includes missing.conf, which isn't there", "b.conf:1: limit_conn limits connections", "nginx.conf:4: rule wl-x: $limit_key leaves these networks uncounted: allow: [10.0.0.0/8, 192.168.0.0/16]",
		"a.conf:1: rule wl-x: delay=3", "b.conf:1: the zone args counts by $arg_token, which no rule can: it is left out", "a.conf:1: rule one: nginx has this for one of 2 servers",
		"nginx.conf:6: the zone idle is used nowhere",
	} {
		if !slices.ContainsFunc(notes, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q isn't among\n%s", want, strings.Join(notes, "\n"))
		}
	}
	if !strings.Contains(string(r.Text), "limit: 30/minute\n    burst: 9\n") || strings.Contains(string(r.Text), "hunter2") {
		t.Errorf("%s", r.Text)
	}
}

// TestHostileNginx checks that a hostile file is refused with an error that says what is wrong and where, without
// quoting the file.
func TestHostileNginx(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop.conf")
	for path, text := range map[string]string{
		loop: "include other.conf;", filepath.Join(dir, "other.conf"): "include loop.conf;",
		filepath.Join(dir, "many.conf"): strings.Repeat("include empty.conf;\n", maxConfFiles+1), filepath.Join(dir, "empty.conf"): "",
		filepath.Join(dir, "folder.conf"): "include " + dir + ";",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		path string
		text []byte
		want string
	}{
		"no file":     {"n.conf", []byte("include;"), "n.conf:1: include: must be a file, or a pattern of files"},
		"loop":        {loop, nil, "other.conf:1: includes itself, by way of loop.conf"},
		"many":        {filepath.Join(dir, "many.conf"), nil, "includes at most 1000 files"},
		"deep":        {"n.conf", []byte(strings.Repeat("a {", 1_000_000)), "nested more than 32 deep"},
		"unclosed":    {"n.conf", []byte("http {\n secret hunter2"), "n.conf:2: is not nginx's syntax"},
		"quote":       {"n.conf", []byte("http { secret \"hunter2 ; }"), "n.conf:1:"},
		"brace":       {"n.conf", []byte("http { }\n}\n"), "n.conf:2: is not nginx's syntax"},
		"semicolon":   {"n.conf", []byte("http { secret hunter2 }\n"), "n.conf:1: has a directive that no semicolon ends"},
		"semicolons":  {"n.conf", []byte(";"), "n.conf:1: has a brace or a semicolon with nothing before it"},
		"binary":      {"n.conf", []byte("\x7fELF\x00\x01\n{};"), "n.conf:1: is no text file"},
		"large":       {"n.conf", []byte(strings.Repeat("#", MaxConf+1)), "at most 16 MiB"},
		"locations":   {"n.conf", []byte("server {" + strings.Repeat("location /a { limit_req zone=z; }\n", 20_000) + "}"), "at most 2000 servers and locations"},
		"servers":     {"n.conf", []byte(strings.Repeat("server { limit_req zone=z; }\n", 20_000)), "at most 2000 servers and locations"},
		"not a file":  {dir, nil, "is a directory"},
		"not there":   {filepath.Join(dir, "none"), nil, "no such file"},
		"words alone": {"n.conf", []byte("\xff\xfe junk \x01"), "n.conf:1: ends too early"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Nginx(c.path, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 300) {
				t.Error(err)
			}
		})
	}
	r, err := Nginx(filepath.Join(dir, "folder.conf"), nil)
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Text, "can't be read") {
		t.Error(r, err)
	}
	r, err = Nginx("n.conf", []byte(`
limit_req_zone $binary_remote_addr zone=one:1m rate=99999999999r/s;
limit_req_zone;
limit_req_zone $a zone=loop:1m rate=1r/s;
map $b $a { default $b; }
map $a $b { default $a; }
limit_req_zone "`+strings.Repeat("$http_a$http_b", 100_000)+`" zone=wide:1m rate=1r/s;
server { limit_req zone=wide; `+strings.Repeat("limit_req zone=one;", 1000)+`limit_req zone=loop; limit_req zone=nosuch burst=-1; location ~ "(?=x)[" { limit_req zone=nosuch; } location "/{id}" { limit_req zone=loop; } }
`))
	if err != nil || r.Rules != 0 || len(r.Notes) < 5 || len(r.Notes) > 50 {
		t.Errorf("%d rules, %d notes, %v", r.Rules, len(r.Notes), err)
	}
}

func FuzzNginx(f *testing.F) {
	f.Add([]byte(zones + "server { limit_req zone=one burst=3; location /a { limit_req zone=two; } location ~* x { } }"))
	f.Add([]byte(`map $a $b { "~^x" ${c}; } geo $a { } server { location = / { } location @x { } location { } if ($a) { } }`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(string(text), "include") {
			return // it would read files of this machine
		}
		if r, err := Nginx("n.conf", text); err == nil && r.Rules > 0 {
			if _, err := rulefile.Parse("rules.yaml", r.Text); err != nil {
				t.Fatal(err)
			}
		}
	})
}
