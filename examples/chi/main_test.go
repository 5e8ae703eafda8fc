package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestLimit(t *testing.T) {
	handler, err := newHandler("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	login := func(password string) int {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.SetBasicAuth("me", password)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for range 10 {
		if got := login("correct horse battery staple"); got != http.StatusOK {
			t.Fatalf("the right password: %d", got)
		}
	}
	for i, want := range []int{401, 401, 401, 401, 401, 429} {
		if got := login("guess"); got != want {
			t.Errorf("guess %d: %d, want %d", i+1, got, want)
		}
	}
	w := httptest.NewRecorder()
	if handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/orders/17", nil)); w.Body.String() != "order 17\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
