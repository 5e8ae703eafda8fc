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

// mayImport lists what each package of the library may import of ours: counter nothing, stores counter alone, and siblings not
// each other.
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
	"/internal/lint":         {"", "/counter", "/internal/pattern", "/internal/private"},
	"/internal/onclose":      {},
	"/internal/patient":      {},
	"/internal/pattern":      {},
	"/internal/private":      {"", "/counter", "/internal/pattern", "/internal/private/link"},
	"/internal/private/link": {"/counter"},
	"/internal/renew":        {""},
	"/internal/node/region":  {"", "/counter", "/redisstore", "/internal/inuse", "/internal/rediscall", "/internal/node/stake"},
	"/internal/node/stake":   {"/counter"},
}

// foreign lists who may import the packages of others whose path begins like that. The library itself, the module at the
// root, has only these two; each of the others enters through a module that needs it.
var foreign = map[string][]string{
	"github.com/felixge/httpsnoop":        {"/httplimit", "/tracing"},
	"pgregory.net/rapid":                  {"/storetest"},
	"github.com/prometheus/":              {"/metrics", "/server/internal/serve", "/server/internal/observe/otlp"},
	"go.opentelemetry.io/otel/sdk":        {"/server/internal/observe/otlp"},
	"go.opentelemetry.io/otel/exporters/": {"/server/internal/observe/otlp"},
	"go.opentelemetry.io/":                {"/tracing", "/server/internal/observe/otlp"},
	module + "/internal/redistest":        {}, // it is for tests
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

// The core does no I/O. All that it logs is a warning about a request or a key that names no client.
func TestCoreKnowsNothingOfTheWorld(t *testing.T) {
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
