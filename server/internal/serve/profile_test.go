package serve

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// brief is the timeout of requests on the port with profiles.
const brief = 3 * time.Second

// profiled starts a port that serves only profiles.
func profiled(t *testing.T, ctx context.Context) (get func(path string) (int, []byte)) {
	t.Helper()
	p, mux := &profiler{ending: ctx}, http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{profile}", func(w http.ResponseWriter, r *http.Request) {
		if f := p.serve(w, r); f != nil {
			f.Write(w)
		}
	})
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
	for path, want := range map[string]int{
		"cmdline": 404, "symbol": 404, "block": 404, "mutex": 404, "x": 404,
		"profile?seconds=61": 400, "profile?seconds=0": 400, "trace?seconds=-1": 400, "profile?seconds=1e1": 400, "heap?debug=3": 400,
	} {
		if status, body := get(path); status != want {
			t.Errorf("%s: got %d, want %d: %.200s", path, status, want, body)
		}
	}
}

// TestOneProfileAtATime checks that only one profile runs at a time, and that a node's stop ends it.
func TestOneProfileAtATime(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	get := profiled(t, ctx)
	done := make(chan []byte)
	go func() {
		for {
			if status, body := get("profile?seconds=60"); status != http.StatusServiceUnavailable { // while threadcreate is being served
				done <- body
				return
			}
		}
	}()
	for {
		status, body := get("threadcreate")
		if status == http.StatusServiceUnavailable && strings.Contains(string(body), "BUSY") {
			break
		}
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	end()
	if body := <-done; len(body) == 0 { // before the test times out
		t.Error("what was recorded is lost")
	}
	if status, body := get("threadcreate"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}
