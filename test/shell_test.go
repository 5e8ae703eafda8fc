package test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shellBlock says how to test a ```sh block.
type shellBlock struct {
	// cannot says why the block can't run here; empty if it can.
	cannot string
	// answers has URLs. The block runs in the background, as if in another terminal, and the script continues once
	// these URLs respond.
	answers string
	// instead has pairs of text to replace: something that only the reader has, and a substitute.
	instead []string
	// stdout and stderr have regular expressions that the output must match.
	stdout, stderr []string
}

// shellBlocks has all shell blocks of the README and the docs by file and heading, in the order of the text. The blocks
// of a file run in one shell and one folder, as if a reader typed them.
var shellBlocks = map[string][]shellBlock{
	"README.md: Start": {
		{answers: "http://127.0.0.1:8080/readyz"},
		{stdout: []string{`^HTTP/1.1 200 OK`, `X-Ratelimit-Remaining: 99|X-RateLimit-Remaining: 99`, `"rule":"quota"`, `\nallowed by quota: 98 of 100 left\n`, `  yes  quota: `, `  yes  address: [^\n]*, by ip, `}},
		{stdout: []string{`\+  - id: search\n`, `allowed by search: 0 of 3 left\nrefused by search: 0 of 3 left, retry in `}, stderr: []string{`version 2 is in force`}},
	},
	"README.md: Several nodes, one limit": {
		{stdout: []string{`(?m)^ +1[0-2]\d 200$`, `(?m)^ +\d+ 429$`}, stderr: []string{`(?s)msg=serving.*msg=serving.*msg=serving`}},
		{},
	},
	"docs/guides/abuse.md: Look after them": {{cannot: "the id and the fingerprint are those of a client of the reader's"}},
	"docs/reference/admin-api.md: Who may do what": {
		{},
		{answers: "https://weir.internal:8082/readyz", instead: []string{"0.0.0.0", "127.0.0.1"}},
		{stdout: []string{`(?m)^rules:`}},
	},
	"docs/reference/admin-api.md: Changing the rules": {
		{stdout: []string{`"version":\s*2\b`, `\+  pro: \{limit: 2000/minute, burst: 500\}`}, instead: []string{"'127.0.0.1:8082", `-H "Authorization: Bearer $TOKEN" 'https://weir.internal:8082`}},
	},
	"docs/reference/admin-api.md: Who changed a rule": {
		{stdout: []string{`"rule":"quota".*"changed":\{"version":2,`}, instead: []string{"127.0.0.1:8082", `-H "Authorization: Bearer $TOKEN" https://weir.internal:8082`}},
	},
	"docs/reference/admin-api.md: Blocks always work": {
		{instead: []string{"'127.0.0.1:8082", `-H "Authorization: Bearer $TOKEN" 'https://weir.internal:8082`}, stdout: []string{`"version":\s*\d`}},
	},
	"docs/reference/admin-api.md: Decisions as they are made": {{cannot: "it goes on until somebody ends it"}},
	"docs/reference/admin-api.md: Clients by their fingerprints": {
		{
			instead: []string{
				"curl -X POST '127.0.0.1:8082", `command curl -sk https://$WEIR_HTTP/v1/check -d '{"key": "sk_that_leaked_0123"}' >/dev/null; curl -H "Authorization: Bearer $TOKEN" -X POST 'https://weir.internal:8082`,
				"1a2b3c4d", `'$(curl -H "Authorization: Bearer $TOKEN" https://weir.internal:8082/v1/clients -d '{"key": "sk_that_leaked_0123"}' | sed 's/.*"fingerprint":"\([^"]*\)".*/\1/')'`,
			},
			stdout: []string{`"version":4,.*\+.*sk_t…23`},
		},
	},
	"docs/reference/admin-api.md: Profiles": {{cannot: "go tool pprof serves a page until somebody ends it"}},
	"docs/guides/ai.md: Try it": {
		{instead: []string{"cd examples", "cd '" + folder("../examples") + "'"}, answers: "http://127.0.0.1:9000/"},
		{instead: []string{"examples/ai/rules.yaml", "'" + folder("../examples/ai/rules.yaml") + "'"}, answers: "http://127.0.0.1:8080/readyz"},
		{stdout: []string{`(?s)^HTTP/1.1 200 OK.*"total_tokens":8`, `(?m)^tokens +100000/minute +\d+ of 20000 tokens `}},
	},
	"docs/guides/ai.md: Over the check API": {{stdout: []string{`"allowed":true.*"amount":"tokens".*"receipt":"|"receipt":".*"amount":"tokens"`}}},
	"docs/guides/logins.md: Limit logins":   {{stdout: []string{`^allowed by login: 4 of 5 left\n$`}}},
	"docs/reference/cli.md: weir demo": {
		{stdout: []string{`429 Too Many Requests`, `After 1 s, as it said: 200 OK`}},
	},
	"docs/reference/cli.md: weir check": {
		{stdout: []string{`(?m)^allowed by quota: 99 of 100 left$`, `(?m)^allowed by login: 5 of 5 left$`}},
	},
	"docs/reference/cli.md: weir explain": {
		{stdout: []string{`(?m)^tier  pro: a keys entry matches$`, `(?m)^ignored  tier pro of keys entry`, `(?m)^  yes  login: `}},
	},
	"docs/reference/cli.md: weir rules": {
		{stdout: []string{`rules.yaml: ok, 3 rules, 0 warnings`, `(?s)\+  free: 200/minute.*\+  free: 200/minute.*\+  free: 200/minute`, `twice as much for free`, `-  free: 200/minute`}, stderr: []string{`(?s)version 2 is in force.*version 3 is in force`}},
	},
	"docs/reference/cli.md: Certificates": {{cannot: "the node and the certificates are the reader's"}},
	"docs/reference/cli.md: weir keys": {
		{instead: []string{
			"weir keys block --client 1a2b3c4d", "weir check sk_that_floods_us_0123 >/dev/null\n" +
				`weir keys block --client $(weir rules usage quota --json | grep -A1 '"sk_th…23"' | sed -n 's/.*"fingerprint": "\(.*\)".*/\1/p')`,
		}, stdout: []string{`\+.*sk_th…23`, `(?m)^quota +1000/minute +200 of 200 `, `\+ +sk_prod_1: \{limit: 3000/minute, expires: `, `\+.*sk_stolen`, `\+.*sk_internal_\*`}, stderr: []string{`counters? reset`, `the override ends at`}},
	},
	"docs/reference/cli.md: weir import": {
		{
			instead: []string{"/srv/runtime_data/current/ratelimit/config", "config", "/etc/nginx/nginx.conf", "nginx.conf"},
			stdout:  []string{`envoy.yaml: ok, 1 rule`, `nginx.yaml: ok, 1 rule`}, stderr: []string{`1 rule; not one to one: 0`},
		},
	},
	"docs/reference/cli.md: weir bench": {
		{
			// This runs the same load for a short time, and without a verdict, because the machine may be busy.
			instead: []string{"weir bench", "weir bench --quiet --warmup 0s --duration 2s", "--keys 1000000", "--keys 100000", "--poisson --duration 1m", "--poisson", " --max-p99 10ms", ""},
			stdout:  []string{`(?s)(?:checks .*){5}`, `"checks": \d`},
		},
	},
	"docs/guides/gateway.md: Try it": {
		{answers: "http://127.0.0.1:9000/ http://127.0.0.1:8080/readyz"},
		{stdout: []string{`^200\n200\n200\n429\n429\n$`}},
	},
	"docs/reference/check-api.md: The check API": {
		{stdout: []string{`(?s)^HTTP/1.1 200 OK.*"allowed":true.*"receipt":"`}},
	},
	"docs/reference/check-api.md: Requests": {
		{stdout: []string{`"allowed":true`, `"limit":100`, `"remaining":19`}},
	},
	"docs/reference/check-api.md: Amounts, reservations, slots": {{stdout: []string{`"allowed":true`, `"receipt":"`}}},
	"docs/guides/envoy.md: Run it": {
		{stdout: []string{`"overallCode":"OK"`, `"name":"quota"`}},
	},
	"docs/guides/envoy-gateway.md: Without Envoy Gateway": {
		{
			instead: []string{"/srv/runtime_data/current", "runtime", "REDIS_SOCKET_TYPE", "HOST=127.0.0.1 PORT=8080 GRPC_HOST=127.0.0.1 GRPC_PORT=8081 REDIS_SOCKET_TYPE"},
			answers: "http://127.0.0.1:8080/healthcheck",
		},
	},
	"docs/guides/grpc.md: Try it": {
		{
			instead: []string{"cd examples", "cd '" + folder("../examples") + "'"},
			stdout:  []string{`(?s)^Hello, you remaining: \[4\]\n(?:Hello[^\n]*\n){4}ResourceExhausted Rate limit of 5 requests per minute exceeded[^\n]*\nretry in 1\ds\n$`},
		},
	},
	"docs/guides/migrate-from-envoyproxy-ratelimit.md: Start Weir with your files": {
		{
			instead: []string{"redis://redis:", "redis://127.0.0.1:", "/srv/runtime_data/current/ratelimit/config", "config", " :808", " 127.0.0.1:808"},
			answers: "http://127.0.0.1:8080/readyz", stderr: []string{`msg=serving`},
		},
	},
	"docs/guides/migrate-from-envoyproxy-ratelimit.md: As rules": {
		{instead: []string{"/srv/runtime_data/current/ratelimit/config", "config"}, stdout: []string{`rules.yaml: ok, 1 rule`}},
	},
	"docs/guides/change-rules.md: Change rules": {
		{
			instead: []string{"https://weir-1.internal:8082 WEIR_ADMIN_TOKEN=…", "127.0.0.1:8082", "edit it\n", "edit it\nsed -i 's,30/minute,60/minute,' rules.yaml\n"},
			stdout:  []string{`(?s)\+    limit: 60/minute.*\+    limit: 60/minute`, `more for search`}, stderr: []string{`(?s)version 2 is in force.*version 3 is in force`},
		},
	},
	"docs/guides/redis.md: Rotate credentials": {
		{instead: []string{"/run/secrets/", "", "'<OLD'", "'<NEW'"}, stdout: []string{`^OK\nOK\n0\n$`}},
	},
	"docs/guides/redis.md: Planned failover":   {{cannot: "it needs Sentinels, and takes a primary out of service"}},
	"docs/guides/console.md: Open the console": {{cannot: "it logs in to another machine"}},
	"docs/guides/regions.md: Setting it up":    {{}, {cannot: "it needs the node of a region, and its rules in a file"}},
	"docs/reference/redis.md: What is in Redis": {
		{stdout: []string{`^1\n`}},
	},
}

// folder returns a path's absolute form.
func folder(path string) string {
	full, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return full
}

// before has what readers of a page already have: a node, Redis, files.
var before = map[string]string{
	"docs/reference/admin-api.md": `
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out cert.pem -days 2 \
	-subj /CN=weir.internal -addext subjectAltName=DNS:weir.internal 2>/dev/null
curl() { command curl -s --cacert cert.pem --resolve weir.internal:${WEIR_ADMIN##*:}:127.0.0.1 "$@"; }
`,
	"docs/guides/logins.md": aNode,
	"docs/reference/cli.md": strings.ReplaceAll(aNode, " --seed-rules rules.yaml", "") + `
rm rules.yaml
pass() { echo sk_stolen; }
mkdir config
echo '{domain: edge, descriptors: [{key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}]}' > config/edge.yaml
echo 'http { limit_req_zone $remote_addr zone=one:1m rate=1r/s; server { limit_req zone=one; } }' > nginx.conf
`,
	"docs/reference/check-api.md": aNode,
	"docs/guides/envoy.md":        aNode,
	"docs/guides/envoy-gateway.md": `
redis-server --port 6379 --save '' --daemonize yes >/dev/null
mkdir -p runtime/ratelimit/config
echo '{domain: edge, descriptors: [{key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}]}' > runtime/ratelimit/config/edge.yaml
ln -s "$(command -v weir)" ratelimit
PATH=$PWD:$PATH
unset WEIR_HTTP WEIR_GRPC WEIR_ADMIN
`,
	"docs/guides/migrate-from-envoyproxy-ratelimit.md": `
redis-server --port 6379 --save '' --daemonize yes >/dev/null
mkdir config
cat > config/edge.yaml <<'END'
domain: edge
descriptors: [{key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}]
END
`,
	"docs/guides/change-rules.md": onRedis,
	"docs/guides/redis.md":        onRedis,
	"docs/reference/redis.md":     onRedis,
}

var onRedis = strings.ReplaceAll(aNode, "weir serve", "weir serve --store redis://127.0.0.1:6379") + `
weir check sk_1 --ip 203.0.113.7 >/dev/null
`

const aNode = `
cat > rules.yaml <<'END'
tiers: {free: 100/minute, pro: 1000/minute}
keys: {"sk_prod_*": pro}
rules:
  - id: quota
  - id: search
    match: {endpoint: /v1/orders}
    limit: 30/minute
  - {id: login, match: {endpoint: POST /login}, by: [user], limit: 5/15m}
  - {id: address, tier: free, by: [ip], limit: 1200/minute}
END
redis-server --port 6379 --save '' --daemonize yes >/dev/null
python3 -m http.server 9000 --bind 127.0.0.1 >/dev/null 2>&1 &
weir serve --seed-rules rules.yaml --gateway 127.0.0.1:8090 --upstream http://127.0.0.1:9000 >/dev/null 2>&1 &
await http://127.0.0.1:8080/readyz
`

// Every shell block of the README and the docs does what the text says.
func TestShellBlocks(t *testing.T) {
	known := map[string]bool{}
	files := append([]string{"README.md"}, pages(t)...)
	for _, file := range files {
		var names []string
		blocks := map[string][]string{}
		for _, b := range shellFences(t, file) {
			if !slices.Contains(names, b.name) {
				names = append(names, b.name)
			}
			blocks[b.name] = append(blocks[b.name], b.text)
		}
		for _, name := range names {
			known[name] = true
			if have, want := len(blocks[name]), len(shellBlocks[name]); have != want {
				t.Errorf("%s has %d shell blocks, and this test knows %d: say in shellBlocks what each does, or why it can't run here", name, have, want)
			}
		}
		if t.Failed() || len(names) == 0 {
			continue
		}
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			s := newShell(t, file)
			for _, name := range names {
				for i, text := range blocks[name] {
					s.add(fmt.Sprintf("%s (%d)", name, i+1), text, shellBlocks[name][i])
				}
			}
			s.run()
		})
	}
	for name := range shellBlocks {
		if !known[name] {
			t.Errorf("there is no %q any more", name)
		}
	}
}

type fence struct{ name, text string }

// shellFences returns the shell blocks of a file with their headings. Every block must name its language, so that none
// is skipped by accident.
func shellFences(t *testing.T, file string) (all []fence) {
	t.Helper()
	text, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	heading, language, body := "", "", ""
	inside := false
	for line := range strings.Lines(string(text)) {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		word, fenced := strings.CutPrefix(line[indent:], "```")
		switch {
		case fenced && inside:
			if inside = false; language == "sh" {
				all = append(all, fence{file + ": " + heading, body})
			}
		case fenced:
			if inside, language, body = true, strings.TrimSpace(word), ""; language == "" {
				t.Errorf("%s: a block under %q doesn't say its language: sh, text, conf, …", file, heading)
			}
		case inside:
			body += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	return all
}

// shell is a script made of a file's blocks.
type shell struct {
	t      *testing.T
	dir    string // folder in which the script runs
	outs   string // folder for the blocks' output
	script strings.Builder
	ports  *strings.Replacer
	env    []string
	blocks []shellBlock
	names  []string
}

func newShell(t *testing.T, file string) *shell {
	s := &shell{t: t, dir: t.TempDir(), outs: t.TempDir()}
	tools := t.TempDir()
	decades := map[string]string{}
	for _, d := range []string{"808", "809", "810", "820", "900", "637", "639"} {
		decades[d] = freeDecade(t)
	}
	var pairs []string
	for from, to := range decades {
		for _, digit := range append(strings.Split("0123456789", ""), "$") {
			pairs = append(pairs, from+digit, to+digit)
		}
	}
	s.ports = strings.NewReplacer(pairs...)
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal(err)
	}
	// redis-cli has no variable for its port.
	script(t, filepath.Join(tools, "redis-cli"), s.ports.Replace(fmt.Sprintf("#!/bin/sh\ncase \" $*\" in *' -p '*) exec %[1]s \"$@\";; esac\nexec %[1]s -p 6379 \"$@\"\n", cli)))
	s.env = append(os.Environ(),
		"PATH="+tools+string(os.PathListSeparator)+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"),
		s.ports.Replace("WEIR_HTTP=127.0.0.1:8080"), s.ports.Replace("WEIR_GRPC=127.0.0.1:8081"), s.ports.Replace("WEIR_ADMIN=127.0.0.1:8082"),
	)
	if file == "README.md" { // the reader is in a fresh clone
		// Building the console takes a minute, and make console has already built the same one for the tests that use
		// it.
		s.env = append(s.env, "CONSOLE=")
		if err := os.CopyFS(s.dir, tree{os.DirFS("..")}); err != nil {
			t.Fatal(err)
		}
	}
	s.script.WriteString("await() { for url; do until curl -sfo /dev/null \"$url\"; do sleep 0.05; done; done; }\n" + s.ports.Replace(before[file]))
	return s
}

// tree is the project without files that aren't in git.
type tree struct{ fs.FS }

func (f tree) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool {
		return slices.Contains([]string{".git", "bin", "node_modules", "weir-data"}, e.Name()) || e.Type() == fs.ModeSymlink
	}), err
}

// decadesTaken are the decades that scripts have reserved, even if nothing listens there yet.
var decadesTaken sync.Map

// freeDecade finds ten free ports that differ only in the last digit, below the kernel's range of ephemeral ports.
func freeDecade(t *testing.T) string {
	t.Helper()
search:
	for range 1000 {
		decade := fmt.Sprint(1100 + rand.IntN(2000))
		if _, taken := decadesTaken.LoadOrStore(decade, true); taken {
			continue
		}
		for digit := range 10 {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%s%d", decade, digit))
			if err != nil {
				continue search
			}
			l.Close()
		}
		return decade
	}
	t.Fatal("no ten ports are free")
	return ""
}

// add appends a block to the script. All blocks run in the same shell, so later blocks see what earlier ones export and
// start.
func (s *shell) add(name, text string, b shellBlock) {
	s.names, s.blocks = append(s.names, name), append(s.blocks, b)
	if b.cannot != "" {
		return
	}
	text = s.ports.Replace(strings.NewReplacer(b.instead...).Replace(text))
	out := filepath.Join(s.outs, fmt.Sprint(len(s.blocks)-1))
	end := "\n"
	if b.answers != "" {
		end = " &\nawait " + s.ports.Replace(b.answers) + "\n"
	}
	fmt.Fprintf(&s.script, "{\n%s} >%s.out 2>%s.err%s", text, out, out, end)
}

// mistakes matches messages that no block may print to stderr: errors of the commands and of the shell.
var mistakes = regexp.MustCompile(`(?m)^weir: .*|.*(?:command not found|No such file|syntax error|unbound variable).*|^make: \*\*\*.*`)

func (s *shell) run() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute) // a build may take minutes on a busy machine
	defer cancel()
	defer func() { // these servers aren't child processes anymore
		for _, port := range []string{"6379", "6390"} {
			_ = exec.Command("redis-cli", "-p", s.ports.Replace(port), "shutdown", "nosave").Run()
		}
	}()
	cmd := exec.CommandContext(ctx, "bash", "-u", "-c", s.script.String())
	cmd.Dir, cmd.Env = s.dir, s.env
	// Processes that the script leaves behind are killed with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // stops nodes that the script started
	if ctx.Err() != nil {
		s.t.Errorf("the script doesn't end: %v\n%s", err, out)
	}
	for i, b := range s.blocks {
		if b.cannot != "" {
			s.t.Logf("%s isn't run: %s", s.names[i], b.cannot)
			continue
		}
		s.judge(i, b)
	}
}

func (s *shell) judge(i int, b shellBlock) {
	stdout, _ := os.ReadFile(filepath.Join(s.outs, fmt.Sprint(i)+".out"))
	stderr, err := os.ReadFile(filepath.Join(s.outs, fmt.Sprint(i)+".err"))
	if err != nil {
		s.t.Errorf("%s didn't run", s.names[i])
		return
	}
	if m := mistakes.Find(stderr); m != nil {
		s.t.Errorf("%s: %s", s.names[i], m)
	}
	for _, c := range []struct {
		got  []byte
		want []string
	}{{stdout, b.stdout}, {stderr, b.stderr}} {
		for _, want := range c.want {
			if !regexp.MustCompile(want).Match(c.got) {
				s.t.Errorf("%s doesn't print %s, but\n%s\n%s", s.names[i], want, stdout, stderr)
			}
		}
	}
}
