// Package test holds what concerns the project as a whole.
package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weirhq/weir"

// mayImport says what each package may import of ours, beside itself: the core nothing, what surrounds it
// the core and, if it lends or borrows, the ledger, and siblings not each other. A package that isn't listed may
// import anything: edges and commands wire.
var mayImport = map[string][]string{
	"":            {},
	"/ledger":     {""},
	"/memstore":   {""},
	"/lease":      {"", "/ledger"},
	"/redisstore": {"", "/ledger", "/internal/guess", "/internal/rediscall", "/internal/siphash"},
	"/cooldown":   {"", "/internal/shown", "/internal/siphash"},
	"/rulefile":   {"", "/internal/guess", "/internal/shown"},
	"/storetest":  {"", "/ledger"},
	"/metrics":    {"", "/cooldown", "/lease", "/memstore", "/redisstore", "/internal/observer"},
	"/tracing":    {"", "/internal/observer"},
	// What people put into their own services carries no YAML, no Redis and no command line.
	"/httplimit":          {"", "/internal/inflight", "/internal/jsonerror", "/internal/onclose", "/internal/renew"},
	"/jwt":                {"/httplimit"},
	"/grpclimit":          {"", "/httplimit", "/internal/jsonerror", "/internal/renew"},
	"/client":             {""},
	"/internal/jsonerror": {},
	"/internal/onclose":   {},
	"/internal/renew":     {""},
	"/internal/region":    {"", "/redisstore", "/internal/rediscall", "/internal/stake"},
	"/internal/siphash":   {},
	"/internal/stake":     {""},
}

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports", module+"/...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportRules(t *testing.T) {
	standard := map[string]bool{}
	packages := list(t)
	for _, p := range packages {
		standard[p.ImportPath] = p.Standard
	}
	seen := 0
	for _, p := range packages {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		allowed, ruled := mayImport[name]
		if !ours || !ruled {
			continue
		}
		seen++
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, module); ours && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
			if (name == "" || name == "/client") && !standard[imp] && imp != module {
				t.Errorf("%s imports %s: it is to import the standard library alone", p.ImportPath, imp)
			}
		}
	}
	if seen != len(mayImport) {
		t.Errorf("%d of %d packages found", seen, len(mayImport))
	}
}

// forTests is what no user of Weir shall carry, and who may import it all the same.
var forTests = map[string][]string{
	module + "/internal/redistest": {module + "/internal/faults", module + "/test/losses", module + "/test/overload"},
	module + "/internal/faults":    {module + "/test/faults"},
	module + "/internal/oteltest":  {},
	module + "/internal/loopback":  {module + "/test/gateways"},
}

func TestNothingForTestsIsShipped(t *testing.T) {
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if allowed, ruled := forTests[imp]; ruled && !slices.Contains(allowed, p.ImportPath) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// A program that uses the middleware requires what httplimit and its tests import: no JWT library, no WebSockets, no parser of headers.
func TestRequirementsOfTheMiddleware(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-test", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"/httplimit")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	may := []string{
		module, "github.com/felixge/httpsnoop",
		"go.uber.org/goleak", "pgregory.net/rapid", // tests
		"github.com/dchest/siphash", // cooldown's, which a test uses
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, module+"/httplimit") {
		t.Fatalf("httplimit isn't among its own dependencies: %s", out)
	}
	for _, p := range packages {
		p = strings.Trim(p, "[]")
		if !slices.ContainsFunc(may, func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") }) {
			t.Errorf("httplimit or one of its tests needs %s", p)
		}
	}
}

// Whoever counts decisions is told of them: neither the core nor an edge or a store knows Prometheus.
func TestMetricsAloneKnowPrometheus(t *testing.T) {
	may := []string{module + "/metrics", module + "/internal/serve", module + "/internal/otlp"}
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, module) || slices.Contains(may, p.ImportPath) {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "github.com/prometheus/") || imp == module+"/metrics" {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// Whoever embeds Weir without traces carries no OpenTelemetry, and with them no more than its API.
func TestTracingAloneKnowsOpenTelemetry(t *testing.T) {
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, module) || p.ImportPath == module+"/internal/otlp" || p.ImportPath == module+"/internal/oteltest" {
			continue
		}
		for _, imp := range p.Imports {
			api := !strings.Contains(imp, "/sdk") && !strings.Contains(imp, "/exporters/")
			if strings.HasPrefix(imp, "go.opentelemetry.io/") && !(p.ImportPath == module+"/tracing" && api) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// The core does no I/O and logs nothing: decisions come back, they aren't told to the world.
func TestCoreKnowsNothingOfTheWorld(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module {
			continue
		}
		for _, far := range []string{"os", "net", "net/http", "log", "log/slog", "io", "database/sql"} {
			if slices.Contains(p.Imports, far) {
				t.Errorf("the core imports %s", far)
			}
		}
	}
}
