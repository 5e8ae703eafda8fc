package httplimit_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

var update = flag.Bool("update", false, "write the golden files anew")

// scene is a conversation whose bytes are compared with a golden file. It runs in a synctest bubble, so its times are always
// the same. Package test parses the structured fields in these files.
type scene struct {
	name    string
	rules   weir.Rules
	options httplimit.Options
	fails   []string // rules whose store is down
	// emergency is another limit for those rules.
	emergency *counter.Policy
	inFlight  int // how many slots are taken before the scene begins
	steps     []step
}

type step struct {
	after   time.Duration
	request string // the request line and headers, without Host
	aside   bool   // don't wait for the answer: it is read at the end
}

func TestGolden(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range slices.Concat(algorithmScenes(), dialectScenes(), refusalScenes(), degradedScenes(), amountScenes()) {
		if seen[s.name] {
			t.Fatalf("two scenes are called %s", s.name)
		}
		seen[s.name] = true
		t.Run(s.name, func(t *testing.T) { synctest.Test(t, s.play) })
	}
	files, err := filepath.Glob("testdata/*.http")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[strings.TrimSuffix(filepath.Base(f), ".http")] {
			t.Errorf("%s belongs to no scene", f)
		}
	}
}

func (s *scene) play(t *testing.T) {
	store := &outage{Store: memstore.New(memstore.Options{}), fails: s.fails}
	l := weir.NewLimiter(store, compile(t, s.rules), weir.Options{Local: memstore.New(memstore.Options{}), Emergency: s.emergency, Guard: cooldown.New(cooldown.Options{})})
	for range s.inFlight {
		if d, err := l.Check(t.Context(), &weir.Request{}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	network := servePipes(t, wrap(l, s.options, ok))
	var script bytes.Buffer
	type aside struct {
		step step
		conn net.Conn
	}
	var asides []aside
	for _, st := range s.steps {
		time.Sleep(st.after)
		conn := network.dial(t)
		lines := append(strings.Split(st.request, "\n"), "Host: example.com", "", "")
		send(t, conn, strings.Join(lines, "\r\n"))
		if st.aside {
			synctest.Wait()
			asides = append(asides, aside{st, conn})
			continue
		}
		s.read(t, conn, st, &script)
	}
	for _, a := range asides {
		s.read(t, a.conn, a.step, &script)
	}
	file := filepath.Join("testdata", s.name+".http")
	if *update {
		if err := os.WriteFile(file, script.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(script.Bytes(), want) {
		t.Errorf("the conversation is another than %s (-update writes it anew):\n%s", file, script.Bytes())
	}
}

// read reads one response and adds its bytes to the script.
func (s *scene) read(t *testing.T, conn net.Conn, st step, script *bytes.Buffer) {
	t.Helper()
	var came bytes.Buffer
	method, _, _ := strings.Cut(st.request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &came)), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if script.Len() > 0 {
		script.WriteString("\n")
	}
	for line := range strings.SplitSeq(st.request, "\n") {
		script.WriteString("> " + line + "\n")
	}
	script.WriteString(strings.ReplaceAll(came.String(), "\r\n", "\n"))
	if !bytes.HasSuffix(script.Bytes(), []byte("\n")) {
		script.WriteString("\n")
	}
	checkAnswer(t, method, resp, body)
}

// checkAnswer checks what must be true of every response.
func checkAnswer(t *testing.T, method string, resp *http.Response, body []byte) {
	t.Helper()
	if method == http.MethodHead && len(body) > 0 {
		t.Errorf("HEAD was answered with a body: %s", body)
	}
	retry := resp.Header.Get("Retry-After")
	if retry != "" {
		if n, err := strconv.Atoi(retry); err != nil || n < 1 {
			t.Errorf("Retry-After: %s", retry)
		}
	}
	if resp.StatusCode < 400 {
		if retry != "" || resp.Header.Get("X-RateLimit-Rule") != "" {
			t.Errorf("an allowed request has the headers of a refusal: %v", resp.Header)
		}
		return
	}
	if got := resp.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: %s", got)
	}
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") || len(body) == 0 {
		return
	}
	type details struct {
		Rule    string `json:"rule"`
		Seconds int    `json:"retry_after_seconds"`
	}
	var e struct {
		Error   struct{ Details details }
		Details details
	}
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	d := e.Error.Details
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		d = e.Details
	}
	seconds, _ := strconv.Atoi(retry)
	if d.Seconds != seconds || d.Rule != resp.Header.Get("X-RateLimit-Rule") {
		t.Errorf("the body says %+v, the headers %v", d, resp.Header)
	}
}
