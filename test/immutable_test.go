package test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Checks in flight share policies, so no code may assign to an existing policy. Code that needs another policy defines
// a new one.
func TestPoliciesAreNeverChanged(t *testing.T) {
	for _, at := range policyWrites(t, readPackages(t)) {
		t.Errorf("%s: changes a counter.Policy: make another one with counter.Define", at)
	}
}

// The scan finds all kinds of assignment.
func TestPolicyWritesAreFound(t *testing.T) {
	dir := t.TempDir()
	planted := filepath.Join(dir, "planted.go")
	if err := os.WriteFile(planted, []byte(`package planted

import "github.com/weirhq/weir/counter"

func writes(p *counter.Policy, c counter.Charge, o *counter.Policy) {
	p.Strict = true
	c.Policy.Limit.Count++
	p.Name, p.Rule = "a", "b"
	p.Definition = counter.Definition{}
	*p = *o
	p.Statuses[0] = 1
	for p.Floor = range 3 {
	}
}

func reads(p *counter.Policy, c *counter.Charge) bool {
	d := p.Definition
	d.Strict = true
	c.Policy = p
	other := p.Limit
	other.Count = 2
	return p.Strict
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	all := readPackages(t)
	all.list = []sources{{Dir: dir, GoFiles: []string{"planted.go"}}}
	found := policyWrites(t, all)
	if len(found) != 8 {
		t.Errorf("%d of 8 writes were found: %s", len(found), strings.Join(found, ", "))
	}
}

type sources struct {
	Dir, ImportPath, Export            string
	GoFiles, TestGoFiles, XTestGoFiles []string
	DepOnly                            bool
}

type packages struct {
	list   []sources
	export map[string]string // import path → export data
}

func readPackages(t *testing.T) packages {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles,TestGoFiles,XTestGoFiles,DepOnly", "work")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := packages{export: map[string]string{}}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p sources
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all.export[p.ImportPath] = p.Export
		if !p.DepOnly && strings.HasPrefix(p.ImportPath, module) && p.ImportPath != module+"/counter" {
			all.list = append(all.list, p)
		}
	}
}

// policyWrites returns the places where packages write to a policy.
func policyWrites(t *testing.T, all packages) (places []string) {
	t.Helper()
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(all.export[path]) })
	seen := 0
	for _, p := range all.list {
		for _, names := range [][]string{append(p.GoFiles, p.TestGoFiles...), p.XTestGoFiles} {
			var files []*ast.File
			for _, name := range names {
				f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
			if len(files) == 0 {
				continue
			}
			info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
			// Files that exist only for tests are missing here, so type errors are ignored. All other code in tests is
			// still checked.
			conf := types.Config{Importer: imports, Error: func(error) {}}
			_, _ = conf.Check(p.ImportPath, fset, files, info)
			seen += len(info.Types)
			for _, f := range files {
				ast.Inspect(f, func(n ast.Node) bool {
					for _, target := range targets(n) {
						if ofPolicy(info, target) {
							places = append(places, fset.Position(target.Pos()).String())
						}
					}
					return true
				})
			}
		}
	}
	if seen == 0 {
		t.Fatal("nothing was read")
	}
	return places
}

// targets returns the expressions that a node of the syntax tree assigns to.
func targets(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Lhs
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		return []ast.Expr{n.Key, n.Value}
	}
	return nil
}

// ofPolicy reports whether an expression is a policy or part of one.
func ofPolicy(info *types.Info, e ast.Expr) bool {
	whole := false
	for first := true; ; first = false {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e, whole = x.X, first
		default:
			return false
		}
		typ := info.Types[e].Type
		if p, ok := typ.(*types.Pointer); ok {
			typ = p.Elem()
		} else if whole {
			return false
		}
		if named, ok := types.Unalias(typ).(*types.Named); ok && named.Obj().Name() == "Policy" && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == module+"/counter" {
			return true
		}
	}
}
