package admin_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A large response is compressed if the client accepts that, with the same content.
func TestLargeAnswersAreCompressed(t *testing.T) {
	p := open(t, nil, "")
	var doc strings.Builder
	doc.WriteString("rules:\n")
	for i := range 1000 {
		fmt.Fprintf(&doc, "  - {id: rule-%d, limit: %d/minute}\n", i, i+1)
	}
	if a := p.do(t, "PUT", "/v1/rules?force=true", doc.String(), "If-Match: *"); a.status != http.StatusOK {
		t.Fatal(a.text)
	}
	// get requests an encoding itself, so that the transport doesn't decompress the response.
	get := func(path string, headers ...string) (http.Header, []byte) {
		t.Helper()
		a := p.do(t, "GET", path, "", headers...)
		if a.status != http.StatusOK || a.header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
		return a.header, []byte(a.text)
	}
	for _, c := range []struct{ path, accept string }{{"/v1/rules", "application/yaml"}, {"/v1/rules", "application/json"}, {"/v1/rules/usage", "*/*"}, {"/v1/rules/diff?from=1&to=2", "text/plain"}} {
		plain, whole := get(c.path, "Accept: "+c.accept, "Accept-Encoding: identity")
		header, packed := get(c.path, "Accept: "+c.accept, "Accept-Encoding: br, gzip")
		if plain.Get("Content-Encoding") != "" || header.Get("Content-Encoding") != "gzip" || header.Get("Content-Type") != plain.Get("Content-Type") || header.Get("ETag") != plain.Get("ETag") {
			t.Errorf("%s: %v and %v", c.path, plain, header)
		}
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatalf("%s: %v", c.path, err)
		}
		text, err := io.ReadAll(z)
		if c.path == "/v1/rules/usage" { // the response contains the time
			if err != nil || len(text) < 16<<10 || len(packed) > len(whole)/4 {
				t.Errorf("%s: %v, %d bytes, packed %d", c.path, err, len(text), len(packed))
			}
		} else if err != nil || !bytes.Equal(text, whole) || len(packed) > len(whole)/2 {
			t.Errorf("%s: %v, %d bytes packed as %d, which are %d", c.path, err, len(whole), len(packed), len(text))
		}
	}
	for _, accept := range []string{"identity", "br", "gzip;q=0", "x-gzip", "*"} {
		if header, _ := get("/v1/rules", "Accept-Encoding: "+accept); header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", accept, header)
		}
	}
	if header, _ := get("/v1/version", "Accept-Encoding: gzip"); header.Get("Content-Encoding") != "" { // small
		t.Errorf("%v", header)
	}
}
