package guard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/internal/jsonerror"
)

func tokens(t *testing.T) Tokens {
	t.Helper()
	ts, err := OneToken("ada", "good")
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

// try sends a token from an address, and returns the code of the refusal, or "".
func try(g *Guard, from, token string) string {
	r := httptest.NewRequest(http.MethodGet, "/v1/rules", nil)
	r.RemoteAddr = from
	r.Header.Set("Authorization", "Bearer "+token)
	if _, refused := g.Admit(r); refused != nil {
		return refused.Code
	}
	return ""
}

func TestBadTokensAreThrottledByNetwork(t *testing.T) {
	for _, c := range []struct {
		guesses string // the address of each guess, with its number
		same    string // an address that is throttled together with them
		other   string // an address that isn't
	}{
		{"192.0.2.1:%d", "[::ffff:192.0.2.1]:5", "192.0.2.2:5"},
		{"[::ffff:192.0.2.1]:%d", "192.0.2.1:5", "[::ffff:192.0.2.2]:5"},
		{"[2001:db8:0:1::%x]:9", "[2001:db8:0:1:ffff:ffff:ffff:ffff]:9", "[2001:db8:0:2::1]:9"},
		{"[fe80::%x%%eth0]:9", "[fe80::99%%eth1]:9", "[fe80:0:0:1::1%%eth0]:9"},
		{"@", "@", "127.0.0.1:5"}, // a socket without an address
	} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Options{Tokens: tokens(t)})
			for i := range 10 {
				from := c.guesses
				if strings.Contains(from, "%") {
					from = fmt.Sprintf(from, i+1)
				}
				if code := try(g, from, fmt.Sprint("guess", i)); code != jsonerror.Unauthorized {
					t.Errorf("%s: %s", from, code)
				}
			}
			same, other := strings.ReplaceAll(c.same, "%%", "%"), strings.ReplaceAll(c.other, "%%", "%")
			if code := try(g, same, "another"); code != jsonerror.TooManyAttempts {
				t.Errorf("%s after %s: %q", same, c.guesses, code)
			}
			if code := try(g, other, "another"); code != jsonerror.Unauthorized {
				t.Errorf("%s after %s: %q", other, c.guesses, code)
			}
			for range 100 {
				if code := try(g, same, "good"); code != "" {
					t.Fatalf("%s: a good token is refused: %s", same, code)
				}
			}
			time.Sleep(time.Minute)
			if code := try(g, same, "another"); code != jsonerror.Unauthorized {
				t.Errorf("%s after a minute: %q", same, code)
			}
		})
	}
}

// Neither the memory nor the log of bad tokens grows beyond its bound, however many addresses and guesses an attacker
// has.
func TestMemoryOfBadTokens(t *testing.T) {
	g := New(Options{Tokens: tokens(t)})
	lines, began := 0, time.Now()
	for i := range 50_000 {
		r := httptest.NewRequest(http.MethodGet, "/v1/rules", nil)
		r.RemoteAddr = fmt.Sprintf("[2001:db8:%x:%x::1]:9", i>>16, i&0xffff)
		if i%2 == 0 {
			r.RemoteAddr = "192.0.2.1:9"
		}
		r.Header.Set("Authorization", fmt.Sprint("Bearer guess", i))
		if _, refused := g.Admit(r); refused == nil {
			t.Fatal("let in")
		} else if log, _ := g.Line(""); log {
			lines++
		}
	}
	if got := g.store.Stats().Bytes; got > memory {
		t.Errorf("%d bytes, and the bound is %d", got, memory)
	}
	if minutes := 2 + int(time.Since(began).Minutes()); lines > maxLines*minutes { // the current minute counts as a whole one
		t.Errorf("%d lines in the log, in %d minutes", lines, minutes)
	}
}

// Checking a good token allocates nothing, however long the token is.
func TestAdmitAllocatesNothing(t *testing.T) {
	long := strings.Repeat("x", 64)
	ts, err := OneToken("http", long)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/check", nil)
	r.Header.Set("Authorization", "Bearer "+long)
	for name, g := range map[string]*Guard{"token": New(Options{Tokens: ts}), "any name": New(Options{AnyName: true}), "loopback": New(Options{})} {
		if name == "loopback" {
			r.Host = "127.0.0.1:8080"
		} else {
			r.Host = "weir.default.svc:8080"
		}
		if n := testing.AllocsPerRun(100, func() {
			if _, refused := g.Admit(r); refused != nil {
				t.Error(refused)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestInvalidTokenFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "holds no token",
		"ada operate":                           ":1: must be a name",
		"\nada boss " + strings.Repeat("0", 64): ":2: the role must be read or operate",
		"ada read 1234":                         "SHA-256 in hex",
	} {
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTokens("", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTokens("", pipe); err == nil || !strings.Contains(err.Error(), "is a pipe") { // reading it would wait for a writer
		t.Errorf("a pipe: %v", err)
	}
}
