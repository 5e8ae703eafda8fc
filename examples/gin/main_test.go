package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"
)

func TestLimit(t *testing.T) {
	gin.SetMode(gin.TestMode)
	secret := []byte("a secret that two parties share!")
	handler, err := newHandler(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	search := func(user string) int {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user}).SignedString(secret)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for i, want := range []int{200, 200, 200, 429} {
		if got := search("alice"); got != want {
			t.Errorf("request %d: %d, want %d", i+1, got, want)
		}
	}
	if got := search("bob"); got != http.StatusOK {
		t.Errorf("another user: %d", got)
	}
}
