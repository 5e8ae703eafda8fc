package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestLimit(t *testing.T) {
	handler, err := newHandler()
	if err != nil {
		t.Fatal(err)
	}
	login := func(password, forwarded string) int {
		form := url.Values{"password": {password}}
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-Forwarded-For", forwarded)
		r.RemoteAddr = "10.0.0.1:1234" // the load balancer's address
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for range 5 {
		if got := login("correct horse battery staple", "198.51.100.1"); got != http.StatusOK {
			t.Fatalf("the right password: %d", got)
		}
	}
	for i, want := range []int{401, 401, 401, 429} {
		forged := strings.Repeat("9.9.9.9, ", i) // addresses that the client forged, which must not count
		if got := login("guess", forged+"198.51.100.1"); got != want {
			t.Errorf("guess %d: %d, want %d", i+1, got, want)
		}
	}
	if got := login("guess", "198.51.100.2"); got != http.StatusUnauthorized {
		t.Errorf("another client: %d", got)
	}
}
