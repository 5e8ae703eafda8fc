// Package gateways starts gateways such as nginx for tests, with the configurations in docs/guides.
package gateways

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/loopback"
)

// Gateway is a kind of gateway that asks Weir about each request.
type Gateway struct {
	Name string
	// H2C says that the gateway accepts HTTP/2 without TLS, in addition to HTTP/1.
	H2C bool
	// Mute says that clients whose requests are admitted don't get the rate-limit headers. The service gets them, and may
	// pass them on.
	Mute bool

	files func(p page, a addresses) map[string]string // returns the contents of configuration files by their names
	run   []string
	late  bool // the gateway listens before it has read its whole configuration, and answers 404 until then
}

// addresses replace the addresses in a page's configuration.
type addresses struct{ listen, service, weir string }

var (
	Nginx = &Gateway{
		Name:  "nginx",
		files: nginx,
		run:   []string{"nginx", "-p", ".", "-c", "nginx.conf", "-e", "/dev/null"},
	}
	Caddy = &Gateway{
		Name:  "caddy",
		H2C:   true,
		files: func(p page, a addresses) map[string]string { return caddyfile(a, p.block("caddyfile", 0)) },
		run:   []string{"caddy", "run", "--config", "Caddyfile"},
	}
	// CaddyShort is Caddy with forward_auth.
	CaddyShort = &Gateway{
		Name: "caddy, short form",
		files: func(_ page, a addresses) map[string]string {
			return caddyfile(a, ":80 {\n\tforward_auth 127.0.0.1:8080 {\n\t\turi /check/caddy\n\t}\n\treverse_proxy 127.0.0.1:3000\n}\n")
		},
		run: Caddy.run,
	}
	HAProxy = &Gateway{
		Name:  "haproxy",
		H2C:   true,
		files: haproxy,
		run:   []string{"haproxy", "-db", "-f", "haproxy.cfg"},
	}
	Traefik = &Gateway{
		Name:  "traefik",
		H2C:   true,
		Mute:  true,
		files: traefik,
		run:   []string{os.Getenv("TRAEFIK"), "--configfile=traefik.yml"},
		late:  true,
	}
)

// All returns the gateways that have a guide: those that Debian packages, and Traefik if the environment variable
// TRAEFIK names its binary, as in make test-traefik.
func All() []*Gateway {
	all := []*Gateway{Nginx, Caddy, HAProxy}
	if os.Getenv("TRAEFIK") != "" {
		all = append(all, Traefik)
	}
	return all
}

func nginx(p page, a addresses) map[string]string {
	conf := p.block("nginx", 0)
	return map[string]string{"nginx.conf": `
daemon off; worker_processes 1; pid nginx.pid; error_log /dev/null crit;
events { worker_connections 256; }
http {
	access_log off; underscores_in_headers on; client_body_buffer_size 1m; keepalive_requests 1000000000;
	client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
` + strings.Replace(a.in(conf), "listen 80;", "listen "+a.listen+";", 1) + "}\n"}
}

func caddyfile(a addresses, conf string) map[string]string {
	host, port, _ := net.SplitHostPort(a.listen)
	conf = strings.Replace(a.in(conf), ":80 {", ":"+port+" {\n\tbind "+host, 1)
	return map[string]string{"Caddyfile": "{\n\tadmin off\n\tauto_https off\n\tlog {\n\t\tlevel ERROR\n\t}\n\tservers {\n\t\tprotocols h1 h2 h2c\n\t}\n}\n" + conf}
}

func haproxy(p page, a addresses) map[string]string {
	conf := strings.NewReplacer("bind :80", "bind "+a.listen, "/etc/haproxy/weir.lua", "weir.lua").Replace(p.block("haproxy", 0))
	return map[string]string{"haproxy.cfg": a.in(conf), "weir.lua": a.in(p.block("lua", 0))}
}

func traefik(p page, a addresses) map[string]string {
	static := strings.NewReplacer(`":80"`, `"`+a.listen+`"`, "/etc/traefik/weir.yml", "weir.yml").Replace(p.block("yaml", 0))
	return map[string]string{"traefik.yml": static + "log: {level: FATAL}\nglobal: {checkNewVersion: false, sendAnonymousUsage: false}\n", "weir.yml": a.in(p.block("yaml", 1))}
}

// in replaces the page's addresses in a configuration by those in a.
func (a addresses) in(conf string) string {
	return strings.NewReplacer("127.0.0.1:3000", a.service, "127.0.0.1:8080", a.weir).Replace(conf)
}

// page is the text of a guide.
type page string

// block returns the nth code block in a language.
func (p page) block(language string, n int) string {
	blocks := Blocks(string(p), language)
	if n >= len(blocks) {
		return "the page has no such block"
	}
	return blocks[n]
}

// Blocks returns the code blocks in a language of a Markdown text.
func Blocks(text, language string) (blocks []string) {
	for _, part := range strings.Split(text, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block+"\n")
	}
	return blocks
}

// Start starts a gateway in front of a service. It returns the address on which the gateway listens, and a function that
// stops it. The gateway also stops when this process ends. docs is the folder with the pages. change consists of pairs: a
// text that must occur in the configuration, and its replacement.
func (g *Gateway) Start(docs, service, weir string, change ...string) (listen string, stop func(), err error) {
	name, _, _ := strings.Cut(g.Name, ",")
	text, err := os.ReadFile(filepath.Join(docs, "guides", name+".md"))
	if err != nil {
		return "", nil, err
	}
	for range 3 { // retried because another process may take the port first
		l, err := net.Listen("tcp", loopback.Host()+":0")
		if err != nil {
			return "", nil, err
		}
		listen = l.Addr().String()
		l.Close()
		files := g.files(page(text), addresses{listen, service, weir})
		for pair := range slices.Chunk(change, 2) {
			found := false
			for name, text := range files {
				found = found || strings.Contains(text, pair[0])
				files[name] = strings.ReplaceAll(text, pair[0], pair[1])
			}
			if !found {
				return "", nil, fmt.Errorf("the page of %s shows no %q", g.Name, pair[0])
			}
		}
		if stop, err = Run(files, g.run...); err != nil {
			return "", nil, err
		}
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if g.serves(listen) {
				return listen, stop, nil
			}
		}
		stop()
	}
	return "", nil, errors.New(g.Name + " doesn't listen")
}

// serves reports whether the gateway accepts requests.
func (g *Gateway) serves(listen string) bool {
	conn, err := net.Dial("tcp", listen)
	if err != nil {
		return false
	}
	defer conn.Close()
	if !g.late {
		return true
	}
	// Weir refuses this key without counting the request.
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\nX-API-Key: a,b\r\n\r\n", listen)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return err == nil && res.StatusCode != http.StatusNotFound
}

// Run starts a command in a new folder with these files, and returns a function that stops it. The command also stops when
// this process ends.
func Run(files map[string]string, command ...string) (stop func(), err error) {
	dir, err := os.MkdirTemp("", "weir-gateway-")
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	// The shell's input closes when this process ends in any way. Then the shell stops the command.
	script := `PATH=$PATH:/usr/sbin; "$@" </dev/null & read -r _; kill $!; wait; rm -rf "$HOME"`
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		in.Close()
		_ = cmd.Wait()
	}, nil
}
