// Package test contains tests of the whole project.
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

// mayImport lists which of our packages each library package may import. Package counter imports none, stores import
// only counter, and packages of the same kind don't import each other.
var mayImport = map[string][]string{
	"":                       {"/counter", "/memstore", "/internal/pattern", "/internal/private/link"},
	"/counter":               {},
	"/ledger":                {"/counter"},
	"/memstore":              {"/counter"},
	"/lease":                 {"/counter", "/ledger"},
	"/redisstore":            {"/counter", "/ledger", "/internal/guess", "/internal/patient", "/internal/rediscall", "/internal/siphash"},
	"/cooldown":              {"", "/counter", "/internal/shown", "/internal/siphash"},
	"/rulefile":              {"", "/counter", "/internal/guess", "/internal/lint", "/internal/private", "/internal/shown"},
	"/storetest":             {"/counter", "/ledger"},
	"/metrics":               {"", "/counter", "/cooldown", "/lease", "/memstore", "/redisstore", "/internal/observer"},
	"/tracing":               {"", "/internal/observer"},
	"/httplimit":             {"", "/counter", "/internal/inflight", "/internal/inuse", "/internal/jsonerror", "/internal/onclose", "/internal/private", "/internal/renew"},
	"/jwt":                   {"/httplimit"},
	"/grpclimit":             {"", "/httplimit", "/internal/jsonerror", "/internal/renew"},
	"/client":                {"", "/counter", "/internal/jsonerror", "/internal/private", "/internal/renew"},
	"/internal/jsonerror":    {},
	"/internal/lint":         {"", "/counter", "/internal/guess", "/internal/pattern", "/internal/private"},
	"/internal/onclose":      {},
	"/internal/patient":      {},
	"/internal/pattern":      {},
	"/internal/private":      {"", "/counter", "/internal/pattern", "/internal/private/link"},
	"/internal/private/link": {"/counter"},
	"/internal/renew":        {""},
	"/internal/node/region":  {"", "/counter", "/redisstore", "/internal/inuse", "/internal/rediscall", "/internal/node/stake"},
	"/internal/node/stake":   {"/counter"},
}

// foreign maps prefixes of third-party import paths to the packages that may import them. The root module has only the
// first two; the others come in through the modules that need them.
var foreign = map[string][]string{
	"github.com/felixge/httpsnoop":        {"/httplimit", "/tracing"},
	"pgregory.net/rapid":                  {"/storetest"},
	"github.com/prometheus/":              {"/metrics", "/server/internal/serve", "/server/internal/observe/otlp"},
	"go.opentelemetry.io/otel/sdk":        {"/server/internal/observe/otlp"},
	"go.opentelemetry.io/otel/exporters/": {"/server/internal/observe/otlp"},
	"go.opentelemetry.io/":                {"/tracing", "/server/internal/observe/otlp"},
	module + "/internal/redistest":        {}, // only for tests
	module + "/internal/loopback":         {"/internal/redistest"},
}

type listed struct {
	ImportPath string
	Imports    []string
	Module     struct{ Path string }
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,Module", module+"/...")
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
	t.Parallel()
	seen := 0
	for _, p := range list(t) {
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
		}
	}
	if seen != len(mayImport) {
		t.Errorf("%d of %d packages found", seen, len(mayImport))
	}
}

func TestForeignPackagesEnterWhereTheyAreNeeded(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || strings.HasPrefix(name, "/server/test") || strings.HasPrefix(name, "/server/bench") || strings.HasPrefix(name, "/examples") {
			continue
		}
		for _, imp := range p.Imports {
			if strings.Contains(strings.Split(imp, "/")[0], ".") && p.Module.Path == module && !strings.HasPrefix(imp, module) &&
				!slices.Contains(foreign[imp], name) {
				t.Errorf("%s imports %s: the library has no third-party packages", p.ImportPath, imp)
			}
			for prefix, may := range foreign {
				if strings.HasPrefix(imp, prefix) && !slices.Contains(may, name) {
					t.Errorf("%s imports %s", p.ImportPath, imp)
				}
			}
		}
	}
}

// The core does no I/O. It only logs warnings about requests or keys that don't identify a client.
func TestCoreDoesNoIO(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if p.ImportPath != module {
			continue
		}
		for _, far := range []string{"os", "net", "net/http", "log", "io", "database/sql"} {
			if slices.Contains(p.Imports, far) {
				t.Errorf("the core imports %s", far)
			}
		}
	}
}
