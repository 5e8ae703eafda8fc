package serve

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/trace"
	"testing"
	"time"
)

// brief is the timeout of requests on the port with profiles.
const brief = 3 * time.Second

// profiled starts a port that serves only profiles.
func profiled(t *testing.T, ctx context.Context) (get func(path string) (int, []byte)) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{profile}", profiles(ctx))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ReadTimeout, s.Config.WriteTimeout = brief, brief
	s.Start()
	t.Cleanup(s.Close)
	return func(path string) (int, []byte) {
		t.Helper()
		res, err := s.Client().Get(s.URL + "/debug/pprof/" + path)
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, body
	}
}

func TestProfiles(t *testing.T) {
	get := profiled(t, t.Context())
	zipped := []byte{0x1f, 0x8b}
	for path, begins := range map[string][]byte{
		"heap": zipped, "allocs": zipped, "goroutine": zipped, "threadcreate": zipped, "goroutine?debug=1": []byte("goroutine profile:"), "trace?seconds=1": []byte("go 1."),
		// This takes longer than the port's timeout.
		"profile?seconds=4": zipped,
	} {
		if status, body := get(path); status != http.StatusOK || !bytes.HasPrefix(body, begins) {
			t.Errorf("%s: %d %.40q", path, status, body)
		}
	}
	for _, path := range []string{"cmdline", "symbol", "x"} {
		if status, body := get(path); status != http.StatusNotFound {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
	}
}

func TestShutdownEndsARecording(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	get := profiled(t, ctx)
	done := make(chan []byte)
	go func() {
		_, body := get("trace?seconds=600")
		done <- body
	}()
	for !trace.IsEnabled() {
		time.Sleep(time.Millisecond)
	}
	end()
	if body := <-done; !bytes.HasPrefix(body, []byte("go 1.")) { // before the test times out
		t.Errorf("the recorded trace is lost: %.40q", body)
	}
}
