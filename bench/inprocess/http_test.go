package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestHTTP(t *testing.T) {
	var out bytes.Buffer
	c, err := parse([]string{"-workloads", "http", "-rounds", "2", "-again", "0", "-time", "50ms", "-warmup", "1ms", "-keys", "1000"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{httpBare, httpBoth, httpSilent, httpHTTPRate} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q wasn't measured:\n%s", want, &out)
		}
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if strings.Contains(line, "http:") && strings.Contains(line, "/") && strings.Contains(line, "not measured") {
			t.Error(line)
		}
	}
}
