package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// asked is a request that a node received.
type asked struct {
	method, uri, body string
	header            http.Header
}

func (a asked) line() string { return a.method + " " + a.uri }

// answers has a node's responses, by method and path.
type answers map[string]func(w http.ResponseWriter, r *http.Request)

// text responds with a status, a version of the rules and a body.
func text(status int, version, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		if version != "" {
			w.Header().Set("ETag", `"`+version+`"`)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// shell runs commands against an admin port with prepared responses.
type shell struct {
	t     *testing.T
	url   string
	stdin string

	mu    sync.Mutex // guards asked
	asked []asked
}

func newShell(t *testing.T, by answers) *shell {
	t.Helper()
	t.Setenv("WEIR_ADMIN_TOKEN", "")
	s := &shell{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.asked = append(s.asked, asked{r.Method, r.URL.RequestURI(), string(body), r.Header})
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer, ok := by[r.Method+" "+r.URL.Path]
		if !ok {
			answer = text(http.StatusNotFound, "", "nobody is here")
		}
		answer(w, r)
	}))
	s.url = server.URL
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
	})
	return s
}

// done is the result of a command.
type done struct {
	stdout, stderr string
	code           int
	asked          []asked
}

// run runs a command. The error that it would print is in stderr.
func (s *shell) run(args ...string) done {
	s.t.Helper()
	s.asked = nil
	d := runWith(s.t, s.stdin, append(args, "--admin", s.url)...)
	d.asked = s.asked
	return d
}

// runWith runs a command with the given standard input.
func runWith(t *testing.T, stdin string, args ...string) done {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := root()
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err := execute(t.Context(), cmd)
	d := done{stdout: stdout.String()}
	var e *exit
	switch {
	case errors.As(err, &e):
		d.code = e.code
		if e.cause != nil {
			stderr.WriteString("weir: " + e.cause.Error())
		}
	case err != nil:
		d.code = exitUsage
		stderr.WriteString("weir: " + err.Error())
	}
	d.stderr = stderr.String()
	return d
}

func (d done) lines() []string {
	var out []string
	for _, a := range d.asked {
		out = append(out, a.line())
	}
	return out
}

// expect checks the exit code, and that the output contains the given texts.
func (d done) expect(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if d.code != code || !strings.Contains(d.stdout, stdout) || !strings.Contains(d.stderr, stderr) {
		t.Errorf("exit %d, want %d with %q and %q\nstdout: %s\nstderr: %s", d.code, code, stdout, stderr, d.stdout, d.stderr)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTokenIsSentAndNeverShown(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules": text(200, "1", "rules: []\n")})
	sent := func(d done) string {
		if len(d.asked) == 0 {
			return "nothing"
		}
		return d.asked[0].header.Get("Authorization")
	}
	if got := sent(s.run("rules", "show")); got != "" {
		t.Errorf("without a token: %q", got)
	}
	t.Setenv("WEIR_ADMIN_TOKEN", "from-environment\n")
	if got := sent(s.run("rules", "show")); got != "Bearer from-environment" {
		t.Errorf("from the environment: %q", got)
	}
	if got := sent(s.run("rules", "show", "--admin-token-file", file(t, "from-file\n"))); got != "Bearer from-file" {
		t.Errorf("from a file: %q", got)
	}
	for content, want := range map[string]string{
		"\n":                  "is empty: it must hold the token",
		"secret-1\nsecret-2":  "must hold one token and nothing else",
		"secret-1 secret-2\n": "must hold one token and nothing else",
	} {
		d := s.run("rules", "show", "--admin-token-file", file(t, content))
		d.expect(t, exitUsage, "", want)
		if len(d.asked) > 0 || strings.Contains(d.stderr, "secret") {
			t.Errorf("%v, %s", d.lines(), d.stderr)
		}
	}
	s.run("rules", "show", "--admin-token-file", "missing").expect(t, exitUsage, "", "--admin-token-file: open missing")
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	var answer func(http.ResponseWriter, *http.Request)
	s := newShell(t, answers{"GET /v1/rules": func(w http.ResponseWriter, r *http.Request) { answer(w, r) }})
	for _, c := range []struct {
		status int
		body   string
		token  string
		code   int
		want   string
	}{
		{401, `{"error": {"code": "UNAUTHORIZED", "message": "send a token"}}`, "", 2,
			"the node asks for a token: put it into WEIR_ADMIN_TOKEN, or into a file that --admin-token-file names"},
		{401, `{"error": {"code": "UNAUTHORIZED", "message": "no"}}`, "sesame", 2, "the node doesn't know the token of WEIR_ADMIN_TOKEN"},
		{403, `{"error": {"code": "FORBIDDEN", "message": "the token of ada may only read"}}`, "sesame", 2,
			"the token of ada may only read: use one with the role operate"},
		{403, `{"error": {"code": "CROSS_SITE", "message": "not from there"}}`, "", 2, "answers 403: not from there"},
		{404, `{"error": {"code": "NOT_FOUND", "message": "there is no version 9"}}`, "", 1, "there is no version 9"},
		{404, `<html>`, "", 3, "answers 404: is it a Weir node?"},
		{409, `{"error": {"code": "RULES_IN_FILE", "message": "the rules are those of a.yaml: change the file"}}`, "", 1,
			"the rules are those of a.yaml: change the file"},
		{429, `{"error": {"code": "TOO_MANY_ATTEMPTS", "message": "no"}}`, "sesame", 3, "correct the token, and try again in 17 s"},
		{400, `{"error": {"code": "BAD_REQUEST", "message": "before: must be a number"}}`, "", 2, "before: must be a number"},
		{500, ``, "", 3, "answers 500"},
		{503, `{"error": {"code": "RULES_UNAVAILABLE", "message": "the rule store can't be reached"}}`, "", 3, "the rule store can't be reached"},
		{200, `rules: []`, "", 3, "the answer has no version of the rules: is it a Weir node?"},
	} {
		t.Setenv("WEIR_ADMIN_TOKEN", c.token)
		answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "17")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}
		d := s.run("rules", "apply", file(t, "rules: []"))
		d.expect(t, c.code, "", c.want)
		if strings.Contains(d.stdout+d.stderr, "sesame") {
			t.Errorf("%d: the token is shown: %s", c.status, d.stderr)
		}
	}
}

func TestNodeThatHasNoVersionYetCannotBeChanged(t *testing.T) {
	s := newShell(t, answers{"GET /v1/rules": text(200, "0", "rules: []")})
	s.run("rules", "apply", file(t, "rules: []")).expect(t, exitUnavailable, "", "hasn't reached its rule store yet")
}

// The CLI follows no redirect, because that would send the token and the document to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := newShell(t, answers{})
	s := newShell(t, answers{"GET /v1/rules": func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.url+"/v1/rules", http.StatusTemporaryRedirect)
	}})
	t.Setenv("WEIR_ADMIN_TOKEN", "sesame")
	s.run("rules", "show").expect(t, exitUnavailable, "", "answers 307")
	if len(other.asked) > 0 {
		t.Errorf("followed: %v", other.asked)
	}
}

func TestNoNodeAnswers(t *testing.T) {
	s := newShell(t, nil)
	s.url = "127.0.0.1:1"
	for _, args := range []string{
		"rules show", "rules show --version 1", "rules history", "rules diff --from 1", "rules rollback", "rules rollback 1", "explain",
		"keys block k", "keys allow k", "keys override k --rule r --limit 1/s", "keys show k", "keys reset k",
		"keys release k --slot 5f0c4b1d9a7e3c2240d1e8b7a6f59312",
	} {
		s.run(strings.Fields(args)...).expect(t, exitUnavailable, "", "no node answers")
	}
	s.run("rules", "show").expect(t, exitUnavailable, "", "connection refused: weir serve starts one, and --admin says where one is")
	for _, command := range []string{"apply", "diff"} {
		s.run("rules", command, file(t, "rules: []")).expect(t, exitUnavailable, "", "no node answers")
	}
}

// The first bytes of HTTP/2, which a gRPC port sends, aren't printed in the error.
func TestAPortThatSpeaksNoHTTP1(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c)) // closing with unread bytes would reset the connection
			_, _ = c.Write([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00\n"))
			c.Close()
		}
	}()
	s := newShell(t, nil)
	s.url = l.Addr().String()
	s.run("nodes").expect(t, exitUnavailable, "", "weir: --admin: this port doesn't speak HTTP/1.1; a node's --grpc port doesn't either: malformed HTTP response")
}

// Every command has help with an example, and commands that use the admin port have --json.
func TestEveryCommandHasHelp(t *testing.T) {
	described := strings.Count("\n"+helpText, "\n# ")
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		described--
		if cmd.Short == "" || cmd.Parent() != nil && cmd.Example == "" {
			t.Errorf("%s: no help, or no example", cmd.CommandPath())
		}
		if cmd.Flags().Lookup("admin-token-file") != nil && cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s: no --json", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Long) {
			if n := len([]rune(line)); n > 86 {
				t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), n, line)
			}
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root())
	walk(helpCommand())
	if described != 1 { // the one of ratelimit, which isn't a subcommand
		t.Errorf("help.txt describes %d commands that don't exist", described-1)
	}
}

func TestCompletion(t *testing.T) {
	offered := func(args ...string) []string {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"__complete"}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return lines[:len(lines)-1] // the last line is a directive
	}
	if got := offered("rules", "rollback", ""); len(got) != 0 {
		t.Errorf("versions: %q", got)
	}
	if got := offered("rules", "apply", ""); !slices.Equal(got, []string{"yaml", "yml", "json"}) {
		t.Errorf("files: %q", got)
	}
	if got := offered("rules", "apply", "--color", ""); !slices.Equal(got, []string{"auto", "always", "never"}) {
		t.Errorf("colours: %q", got)
	}
}
