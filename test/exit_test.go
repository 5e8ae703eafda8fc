package test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Exit codes for scripts: 0 means allowed or valid, 1 refused or invalid, 2 a mistake in the command or its token, and
// 3 that no node responds.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good.yaml"), "rules:\n  - {id: one, limit: 1/day}\nblacklist: [blocked]\n")
	bad := write(t, filepath.Join(dir, "bad.yaml"), "rules:\n  - {id: one, limit: 0/day}\n")
	strict := write(t, filepath.Join(dir, "strict.yaml"), "rules:\n  - {id: one, by: [ip], limit: 1/day}\n")
	n := serve(t, "--rules", good)
	const nobody = "127.0.0.1:1" // port 1, because a freed port could belong to another test by now
	asks := serve(t, "--rules", good, "--http-token", "correct-horse-battery", "--admin-token", "correct-horse-battery")
	token := write(t, filepath.Join(dir, "token"), "wrong-horse-battery")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, c := range []struct {
		args string
		want int
	}{
		{"check --key k --http " + n.HTTP, 0},
		{"check --key k --http " + n.HTTP, 1},
		{"check --key blocked --http " + n.HTTP, 1},
		{"check --key k --cost 0 --json --http " + n.HTTP, 1},
		{"check --cost -1 --http " + n.HTTP, 2},
		{"check --ip nonsense --http " + n.HTTP, 2},
		{"check --nonsense", 2},
		{"check --key k --http 8080", 2},
		{"check --key k --http ftp://127.0.0.1", 2},
		{"check --key k --http " + asks.HTTP, 2}, // the node requires a token
		{"check --key k --http-token-file " + token + " --http " + asks.HTTP, 2},
		{"check one two", 2},
		{"check k --key k --http " + n.HTTP, 2},
		{"check k2 --http " + n.HTTP, 0},
		{"check k2 --http " + n.HTTP, 1},
		{"check --key k --http " + nobody, 3},
		{"check --key k --http " + other.URL, 3},
		{"rules lint " + good, 0},
		{"rules lint " + bad, 1},
		{"rules lint " + good + " " + bad, 1},
		{"rules lint --json " + bad, 1},
		{"rules lint --strict " + good, 1}, // the rules don't limit addresses, so applying them needs --force
		{"rules lint --strict " + strict, 0},
		{"rules lint " + filepath.Join(dir, "none.yaml"), 2},
		{"rules lint", 2},
		{"rules show " + good, 0},
		{"rules show " + bad, 1},
		{"rules show --admin " + n.Admin, 0},
		{"rules show " + filepath.Join(dir, "none.yaml"), 2},
		{"rules show --admin " + asks.Admin, 2},
		{"rules show --admin 8082", 2},
		{"rules show --admin " + nobody, 3},
		{"rules show --version 1 " + good, 2},
		{"rules show --version 1 --admin " + n.Admin, 1}, // a node with a rule file keeps no versions
		{"rules apply " + good + " --admin " + n.Admin, 1},
		{"rules apply " + good + " --admin " + asks.Admin, 2}, // 1 is for rules that are rejected
		{"rules apply " + good + " --admin " + nobody, 3},
		{"rules apply " + good + " --admin " + other.URL, 3},
		{"rules apply " + filepath.Join(dir, "none.yaml") + " --admin " + n.Admin, 2},
		{"rules apply", 2},
		{"rules apply --color blue " + good, 2},
		{"rules diff", 2},
		{"rules diff " + bad + " --admin " + n.Admin, 2}, // 1 is for files that differ
		{"rules diff " + good + " --admin " + n.Admin, 0},
		{"rules diff --from 1 --admin " + nobody, 3},
		{"rules history --limit 0", 2},
		{"rules history --admin " + nobody, 3},
		{"rules rollback last", 2},
		{"rules rollback --admin " + nobody, 3},
		{"rules nonsense", 2},
		{"rules nonsense --help", 2},
		{"help nonsense", 2},
		{"rules apply " + good + " --admin " + n.HTTP, 2}, // it is the check port
		{"keys", 0},
		{"keys nonsense", 2},
		{"keys block", 2},
		{"keys block k --admin " + n.Admin, 0},
		{"keys blocks --admin " + n.Admin, 0},
		{"keys block k --remove --admin " + n.Admin, 0},
		{"keys block k --admin " + nobody, 3},
		{"keys override k --limit 1/s", 2},
		{"keys override k --rule one --limit 1/s --admin " + n.Admin, 1},
		{"keys show k --admin " + n.Admin, 0},
		{"keys show k --admin " + nobody, 3},
		{"keys show", 2},
		{"keys show k --admin-token-file " + filepath.Join(dir, "none") + " --admin " + n.Admin, 2},
		{"explain --key k --rules " + good, 0},
		{"explain --key k --rules " + bad, 1},
		{"explain --key k --rules " + filepath.Join(dir, "none.yaml"), 2},
		{"explain --attr nonsense --rules " + good, 2},
		{"explain --key k --admin " + n.Admin, 0},
		{"explain --key k --admin " + nobody, 3},
		{"serve --rules " + bad, 1},
		{"serve --rules " + filepath.Join(dir, "none.yaml"), 2},
		{"serve --seed-rules " + filepath.Join(dir, "none.yaml"), 2},
		{"serve --admin-tokens " + filepath.Join(dir, "none"), 2},
		{"serve --http " + strings.TrimPrefix(n.HTTP, "http://"), 1}, // the address is in use
		{"serve --upstream http://127.0.0.1:9", 2},
		{"serve --memory-cap lots", 2},
		{"serve --store nonsense", 2},
		{"serve --store redis://127.0.0.1:notaport", 2},
		{"serve --store redis://127.0.0.1:1 --store-timeout 0s", 2},
		{"serve --store redis://127.0.0.1:1 --emergency-limit lots", 2},
		{"serve --emergency-limit 10/s", 2},
		{"serve --http 8080", 2},
		{"serve --log-level verbose", 2},
		{"serve --store-timeout 50", 2},
		{"bench --duration 0s", 2},
		{"bench --rules " + bad, 1},
		{"bench --rules " + filepath.Join(dir, "none.yaml"), 2},
		{"bench " + asks.HTTP, 2},
		{"bench --store redis://127.0.0.1:notaport", 2},
		{"bench --store redis://" + nobody, 3},
		{"bench " + nobody, 3},
		{"version", 0},
		{"--version", 0},
		{"demo extra", 2},
		{"nonsense", 2},
		{"", 0},
		{"--help", 0},
	} {
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields(c.args)...)
		cmd.Dir = dir // this folder has no weir.yaml
		out, err := cmd.CombinedOutput()
		got := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != c.want {
			t.Errorf("weir %s: exit %d, want %d\n%s", c.args, got, c.want, out)
		}
		if got != 0 && len(out) == 0 {
			t.Errorf("weir %s: exit %d without a word", c.args, got)
		}
	}
}
