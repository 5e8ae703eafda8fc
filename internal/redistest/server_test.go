package redistest

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must is Do for commands that are to succeed.
func must(t *testing.T, s *Server, args ...string) any {
	t.Helper()
	v, err := s.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func soon(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := Until(ctx, check); err != nil {
		t.Fatal(err)
	}
}

func TestSingle(t *testing.T) {
	s := New(t, Options{})
	must(t, s, "SET", "a", "1")
	if got := must(t, s, "GET", "a"); got != "1" {
		t.Errorf("GET a: got %v", got)
	}
}
