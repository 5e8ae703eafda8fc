package checkapi_test

import (
	"testing"

	"github.com/weirhq/weir"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLimiter(tb testing.TB, store weir.Store, rules weir.Rules) *weir.Limiter {
	tb.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		tb.Fatal(err)
	}
	return weir.NewLimiter(store, set, weir.Options{Secret: []byte("of the tests")})
}
