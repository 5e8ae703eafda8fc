package admin

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// However often a caller repeats a request that changes nothing, the audit log grows by at most 100 lines a minute per
// caller. The next line says how many requests were left out.
func TestTheAuditIsBounded(t *testing.T) {
	line := func(name, role string) string {
		return fmt.Sprintf("%s %s %x\n", name, role, sha256.Sum256([]byte("token-of-"+name)))
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(line("ada", "operate")+line("bob", "read")), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := guard.LoadTokens("", file)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a, h := newAPI(t)
		var log bytes.Buffer
		a.Audit = slog.New(slog.NewTextHandler(&log, nil))
		a.Guard = guard.New(guard.Options{Tokens: tokens, Console: true})
		a.Self = func() rulestore.Node { return rulestore.Node{} }
		send := func(method, path, body, token string, want int) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != want {
				t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
		login := func(name string) {
			send("POST", "/v1/session", `{"token": "token-of-`+name+`"}`, "", http.StatusOK)
		}
		for what, c := range map[string]struct {
			do   func()
			want int
			line string
		}{
			"logins":           {func() { login("ada") }, 100, `what="log in" left_out=2900`},
			"writes of a read": {func() { send("PUT", "/v1/rules/id/sk_pasted", "", "token-of-bob", http.StatusForbidden) }, 100, "path=/v1/rules/id/{id} why=FORBIDDEN left_out=2900"},
			"strangers":        {func() { send("GET", "/v1/rules/id/sk_pasted", "", "", http.StatusUnauthorized) }, 100, "path=/v1/rules/id/{id} why=UNAUTHORIZED left_out=2900"},
			"dry runs": {func() {
				send("PUT", "/v1/rules?dry_run=true", "rules: [", "token-of-bob", http.StatusPreconditionRequired)
			}, 0, ""},
			"bad dry runs": {func() {
				send("PUT", "/v1/rules/id/x?dry_run=true", "limit: x", "token-of-bob", http.StatusUnprocessableEntity)
			}, 0, ""},
		} {
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
			log.Reset()
			for range 3000 {
				c.do()
			}
			if n := strings.Count(log.String(), "\n"); n != c.want {
				t.Errorf("%s: %d lines, want %d", what, n, c.want)
			}
			time.Sleep(time.Minute)
			log.Reset()
			c.do()
			c.do()
			first, second, _ := strings.Cut(log.String(), "\n")
			if !strings.HasSuffix(first, c.line) || strings.Contains(second, "left_out") || strings.Contains(log.String(), "sk_pasted") {
				t.Errorf("%s: %s", what, log.String())
			}
		}
		// One caller's repeated requests don't hide those of others, or writes.
		for range 200 {
			login("bob")
		}
		log.Reset()
		login("ada")
		send("PUT", "/v1/rules/id/x", "limit: 1/minute", "token-of-ada", http.StatusConflict)
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want 2: %s", n, log.String())
		}
	})
}
