package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
)

func TestLimit(t *testing.T) {
	server, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()
	for _, key := range []string{"me", "somebody else"} {
		var out bytes.Buffer
		if err := greet(&out, listener.Addr().String(), key); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); strings.Count(text, "Hello, you") != 5 || !strings.Contains(text, "ResourceExhausted Rate limit of 5 requests per minute exceeded") || !strings.Contains(text, "retry in 1") {
			t.Errorf("%s: %s", key, text)
		}
	}
}
