package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAnswers checks that requests settle their reservations. Each request reserves a little over 1,000 tokens, so a key's burst
// of 20,000 tokens would allow only 19 requests if they didn't settle. Settled requests use far less, so many more pass.
func TestAnswers(t *testing.T) {
	handler, err := answers()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		r := httptest.NewRequest(http.MethodGet, "/?q=four+words+are+here", nil)
		r.Header.Set("X-API-Key", "sk_1")
		r.Header.Set("X-Team", "search")
		r.Header.Set("X-User", "ada")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != 200 {
			t.Fatalf("request %d: %d %s", i+1, w.Code, w.Body)
		}
	}
}

func TestModel(t *testing.T) {
	server := httptest.NewServer(model(0))
	defer server.Close()
	for body, want := range map[string]string{
		`{"model": "small-1", "max_tokens": 2, "messages": [{"content": "four words are here"}]}`:                 `"total_tokens":6`,
		`{"model": "small-1", "stream": true, "messages": [{"content": "four words are here"}]}`:                  `"total_tokens":8`,
		`{"model": "small-1", "stream": true, "max_tokens": 1, "messages": [{"content": "four words are here"}]}`: "[DONE]",
	} {
		res, err := http.Post(server.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v, want %s", body, text, err, want)
		}
	}
}
