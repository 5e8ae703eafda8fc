package test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

// With the rules of the README and the starter file, verified clients get the limits of their tier and override
// whatever their address is. The addresses of clients that make up keys are limited.
func TestAddressesDontCapClients(t *testing.T) {
	t.Parallel()
	starter, err := os.ReadFile("../server/internal/serve/starter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"README.md": fences(t, "../README.md", "yaml")[0], "starter.yaml": string(starter), "docs/reference/rules.md": fences(t, "../docs/reference/rules.md", "yaml")[0]} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raised, err := rulefile.SetOverride([]byte(text), "quota", "sk_raised", rulefile.Numbers{Limit: "5000/minute"})
				if err != nil {
					t.Fatal(err)
				}
				file, err := rulefile.Parse(name, []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if len(file.Warnings) > 0 {
					t.Errorf("%v", file.Warnings)
				}
				if file, err = rulefile.Parse(name, raised); err != nil {
					t.Fatal(err)
				}
				l := weir.NewLimiter(memstore.New(memstore.Options{}), file.Set, weir.Options{})
				admitted := func(address string, n int, key func(i int) string, verified bool) (ok int) {
					for i := range n {
						d, err := l.Check(t.Context(), &weir.Request{APIKey: key(i), KeyVerified: verified, IP: netip.MustParseAddr(address), Path: "/"})
						if err != nil {
							t.Fatal(err)
						}
						if d.Allowed {
							ok++
						}
					}
					return ok
				}
				same := func(key string) func(int) string { return func(int) string { return key } }
				if n := admitted("192.0.2.1", 250, same("sk_prod_1"), true); n != 200 {
					t.Errorf("pro: %d at once, want its burst of 200", n)
				}
				if n := admitted("192.0.2.2", 150, same("sk_1"), true); n != 100 {
					t.Errorf("free: %d at once, want 100", n)
				}
				if name == "starter.yaml" {
					if n := admitted("192.0.2.3", 5500, same("sk_raised"), true); n != 5000 {
						t.Errorf("override: %d at once, want 5000", n)
					}
				}
				if n := admitted("192.0.2.4", 20_000, func(i int) string { return fmt.Sprint("sk_prod_", i) }, false); n > 6000 {
					t.Errorf("invented keys: %d at once", n)
				}
			})
		})
	}
}
