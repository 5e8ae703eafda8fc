package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

const blocked = "sk_blocked"

// reading is how an upstream reads a request: every value that a service of its kind might take for the API key.
type reading []string

// keyed reports whether one of the values is the blocked key. Services trim values, so it does, too.
func (r reading) keyed() bool {
	for _, v := range r {
		if v, _, _ = strings.Cut(v, "\x00"); strings.TrimSpace(v) == blocked {
			return true
		}
	}
	return false
}

var bearerIn = regexp.MustCompile(`(?i)bearer[\s\x{a0}]+([^\s,\x{a0}]+)`)

// bearerReadings returns the tokens that different services would take from an Authorization header.
func bearerReadings(value string) (r reading) {
	words := strings.Fields(value)
	r = append(r, strings.Replace(value, "Bearer ", "", 1))
	if len(words) > 1 && strings.EqualFold(words[0], "bearer") {
		r = append(r, words[1])
	}
	if m := bearerIn.FindStringSubmatch(value); m != nil {
		r = append(r, m[1])
	}
	return r
}

// goUpstream starts an upstream that reads keys like Go's net/http and net/http/cgi.
func goUpstream(t *testing.T) string {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		var got reading
		got = append(got, r.URL.Query()["api_key"]...)
		for name, values := range r.Header {
			if strings.ReplaceAll(strings.ToUpper(name), "-", "_") == "X_API_KEY" {
				got = append(got, values...)
			}
		}
		for _, v := range r.Header["Authorization"] {
			got = append(got, bearerReadings(v)...)
		}
		_ = json.NewEncoder(w).Encode(got)
	})
	return up.URL
}

// nginxUpstream starts an upstream that reads keys through nginx's variables, with underscores_in_headers on, a common
// setting.
func nginxUpstream(t *testing.T) string {
	dir, addr := t.TempDir(), strings.TrimPrefix(nowhere(t), "http://")
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr crit; events {}
http {
  access_log off; underscores_in_headers on; ignore_invalid_headers off;
  client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server { listen %[2]s; location / { default_type text/plain; return 200 "$arg_api_key\n$http_x_api_key\n$http_authorization"; } }
}`, dir, addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, addr, exec.Command("nginx", "-c", config, "-p", dir))
	return "http://" + addr
}

// nodeUpstream starts an upstream that reads keys with Node's own modules.
func nodeUpstream(t *testing.T) string {
	addr := strings.TrimPrefix(nowhere(t), "http://")
	host, port, _ := strings.Cut(addr, ":")
	run(t, addr, exec.Command("node", "-e", `
const qs = require("querystring"), url = require("url");
process.noDeprecation = true;
require("http").createServer((req, res) => {
	const got = [].concat(new URL(req.url, "http://x").searchParams.getAll("api_key"), qs.parse(req.url.split("?")[1] || "").api_key || [],
		url.parse(req.url, true).query.api_key || [], qs.parse(req.url.split("?")[1] || "", ";").api_key || [], (req.headers["x-api-key"] || "").split(","));
	for (const [name, value] of Object.entries(req.headers)) if (name.replace(/\W/g, "_") === "x_api_key") got.push(...value.split(","));
	const auth = req.headers.authorization || "";
	got.push(auth.replace("Bearer ", ""), auth.split(" ")[1] || "", auth.split(/\s+/)[1] || "", (auth.match(/bearer\s+([^\s,]+)/i) || [])[1] || "");
	res.end(JSON.stringify(got.map(String)));
}).listen(`+port+`, "`+host+`");`))
	return "http://" + addr
}

// run starts a server and waits until it answers.
func run(t *testing.T, addr string, cmd *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if res, err := client.Get("http://" + addr + "/"); err == nil {
			res.Body.Close()
			return
		}
		select {
		case <-ended:
			t.Fatal(said.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("it doesn't answer: " + addr)
		}
	}
}

// spelling returns a random request that contains the blocked key in some spelling.
func spelling(rnd *rand.Rand) (target, lines string) {
	pick := func(of ...string) string { // mostly the first, so that few requests are odd in two ways
		if rnd.IntN(4) > 0 {
			return of[0]
		}
		return of[rnd.IntN(len(of))]
	}
	key := func() string { return pick(blocked, "sk_other", "") }
	target = "/"
	switch rnd.IntN(3) {
	case 0:
		target += pick("?", "?a=1&", "?a=1;", "?a=1?")
		for i := 0; i == 0 || rnd.IntN(4) == 0; i++ {
			if i > 0 {
				target += pick("&", ";", "&&", "&;")
			}
			target += pick("", "%20", "+") + pick("api_key", "api%5fkey", "API_KEY", "Api_Key", "api.key", "api+key", "api_key[]", "api_key[0]", "api_key%5b%5d", "a") +
				pick("", "%20", "%00") + pick("=", "==", "") + pick("", "%20", "+", "%09") +
				pick(key(), strings.ReplaceAll(key(), "_", "%5f")) + pick("", "%20", "+", "%00", "%0d%0a", "#", "#x", ";", ",sk_other")
		}
	case 1:
		for i := 0; i == 0 || rnd.IntN(4) == 0; i++ {
			lines += pick("X-API-Key", "x-api-key", "X_API_Key", "X-Api_Key", "X.API.KEY") + ":" + pick("", " ", "\t ") +
				pick("", "sk_other,", "\xa0", "\u00a0", ",") + key() + pick("", " ", "\xa0", "\u00a0", ", sk_other", ",") + "\r\n"
		}
	case 2:
		for i := 0; i == 0 || rnd.IntN(4) == 0; i++ {
			lines += pick("Authorization", "authorization", "AUTHORIZATION") + ": " + pick("", "Basic eA== ", "Basic eA==,", "Basic eA==, ", "\xa0", "Bearer ", "Digest a=b, ") +
				pick("Bearer", "bearer", "BEARER", "Token", "") + pick(" ", "\t", "  ", " \t ", "\xa0", "\u00a0", "") +
				key() + pick("", " ", "\t", " x", ", Bearer "+key(), ",", "\xa0") + "\r\n"
		}
	}
	return target, lines
}

// No upstream that reads the blocked key gets the request, however the key is spelled: Weir reads the key, too, or
// refuses the request as ambiguous.
func TestBlockedKeysStayOut(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{plenty}, Deny: []string{blocked}})
	if err != nil {
		t.Fatal(err)
	}
	limit := httplimit.Options{Identity: httplimit.Identity{APIKey: httplimit.Source{Header: "X-API-Key", Query: "api_key", Bearer: true}}}
	for name, c := range map[string]struct {
		url  string
		read func(body string) (reading, error)
	}{
		"Go":   {goUpstream(t), readJSON},
		"Node": {nodeUpstream(t), readJSON},
		"nginx": {nginxUpstream(t), func(body string) (reading, error) {
			lines := strings.Split(body, "\n")
			if len(lines) != 3 {
				return nil, fmt.Errorf("%q", body)
			}
			plain, _ := url.QueryUnescape(lines[0])
			r := append(bearerReadings(lines[2]), lines[0], plain)
			return append(r, strings.Split(lines[1], ",")...), nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			limiter := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
			d := start(t, setup{upstream: c.url, limiter: limiter, limit: limit})
			count := map[int]int{}
			for range 1500 {
				target, lines := spelling(rnd)
				a := d.raw(t, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+lines+"\r\n")
				count[a.StatusCode]++
				if a.StatusCode != 200 {
					continue
				}
				got, err := c.read(a.body)
				if err != nil {
					t.Fatal(err)
				}
				if got.keyed() {
					t.Errorf("seed %d: %q with %q: the upstream reads %q", seed, target, lines, got)
				}
			}
			if count[200] < 50 || count[400] < 50 || count[403] < 50 {
				t.Errorf("the test tries too little: %v", count)
			}
			if a := d.raw(t, "GET /?api_key=sk_other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); a.StatusCode != 200 || !strings.Contains(a.body, "sk_other") {
				t.Errorf("another key: %s %q", a.Status, a.body)
			}
		})
	}
}

func readJSON(body string) (r reading, err error) {
	return r, json.NewDecoder(io.LimitReader(strings.NewReader(body), 1<<20)).Decode(&r)
}
