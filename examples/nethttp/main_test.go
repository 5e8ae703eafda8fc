package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestLimit(t *testing.T) {
	handler, err := newHandler()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 200, 200, 200, 429} {
		r := httptest.NewRequest(http.MethodGet, "/orders", nil)
		r.Header.Set("X-API-Key", "me")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("request %d: %d, want %d", i+1, w.Code, want)
		}
	}
}
