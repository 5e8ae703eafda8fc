package ui

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func gz(t *testing.T, text string) *fstest.MapFile {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &fstest.MapFile{Data: b.Bytes()}
}

func serve(t *testing.T, files fstest.MapFS) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	open(files).Register(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	if req.Header.Get("Accept-Encoding") == "" {
		req.Header.Set("Accept-Encoding", "identity") // otherwise the transport would ask for gzip and decompress it
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestFilesOfTheUI(t *testing.T) {
	s := serve(t, fstest.MapFS{
		"index.html.gz": gz(t, "<console>"), "play.html.gz": gz(t, "<play>"), "favicon.svg.gz": gz(t, "<svg>"),
		"assets/app-1a2b.js.gz": gz(t, "app()"), "assets/app-1a2b.css.gz": gz(t, "a{}"),
		"play/weir.wasm.gz": gz(t, "\x00asm"), "play/wasm_exec.js.gz": gz(t, "go()"),
	})
	const forever, asked = "public, max-age=31536000, immutable", "no-cache"
	const html, js = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
	for path, want := range map[string]struct{ body, kind, cache, policy string }{
		"/console/":                       {"<console>", html, asked, policy},
		"/console/why":                    {"<console>", html, asked, policy},
		"/console/keys/1a2b3c4d":          {"<console>", html, asked, policy},
		"/console/rules/a.b":              {"<console>", html, asked, policy},
		"/console/rules/x.js":             {"<console>", html, asked, policy},
		"/console/index.html":             {"<console>", html, asked, policy},
		"/console/play.html":              {"<console>", html, asked, policy}, // the console instead, because the playground has its own policy
		"/console/favicon.svg":            {"<svg>", "image/svg+xml", asked, filePolicy},
		"/console/assets/app-1a2b.js":     {"app()", js, forever, filePolicy},
		"/console/assets/app-1a2b.css":    {"a{}", "text/css; charset=utf-8", forever, filePolicy},
		"/console/assets/app-old.js":      {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
		"/console/assets/":                {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
		"/console/assets":                 {"<console>", html, asked, policy},
		"/console/assets/%2e%2e/play":     {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
		"/console/assets/..%2findex.html": {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
		"/play":                           {"<play>", html, asked, playPolicy},
		"/play/weir.wasm":                 {"\x00asm", "application/wasm", asked, filePolicy},
		"/play/wasm_exec.js":              {"go()", js, asked, filePolicy},
		"/play/none":                      {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
		"/play/..%2findex.html":           {"404 page not found\n", "text/plain; charset=utf-8", "", ""},
	} {
		res, body := get(t, "GET", s.URL+path)
		h := res.Header
		if body != want.body || h.Get("Content-Type") != want.kind || h.Get("Cache-Control") != want.cache || h.Get("Content-Security-Policy") != want.policy {
			t.Errorf("%s: %s %v %q", path, res.Status, h, body)
		}
		if res.StatusCode != http.StatusOK {
			continue
		}
		for _, accepted := range []string{"gzip", "br, gzip", "gzip, deflate"} {
			packed, compressed := get(t, "GET", s.URL+path, "Accept-Encoding: "+accepted)
			r, err := gzip.NewReader(strings.NewReader(compressed))
			if err != nil || packed.Header.Get("Content-Encoding") != "gzip" || packed.ContentLength != int64(len(compressed)) {
				t.Fatalf("%s, %s: %v %v", path, accepted, err, packed.Header)
			}
			if text, err := io.ReadAll(r); err != nil || string(text) != body {
				t.Errorf("%s, %s: %q, %v", path, accepted, text, err)
			}
		}
		for _, accepted := range []string{"gzip;q=0", "gzip; q=0.0", "br", "x-gzip"} {
			if plain, text := get(t, "GET", s.URL+path, "Accept-Encoding: "+accepted); text != body || plain.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s, %s: %q %v", path, accepted, text, plain.Header)
			}
		}
		if head, text := get(t, "HEAD", s.URL+path, "Accept-Encoding: gzip"); head.StatusCode != http.StatusOK || text != "" || head.ContentLength <= 0 {
			t.Errorf("HEAD %s: %s, %d, %q", path, head.Status, head.ContentLength, text)
		}
		tag := h.Get("ETag")
		if (tag != "") != (want.cache == asked) {
			t.Errorf("%s: ETag %q, and %s", path, tag, want.cache)
		}
		if again, text := get(t, "GET", s.URL+path, "If-None-Match: "+tag); tag != "" && (again.StatusCode != http.StatusNotModified || text != "") {
			t.Errorf("%s again: %s %q", path, again.Status, text)
		}
	}
	if res, _ := get(t, "POST", s.URL+"/console/"); res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", res.Status)
	}
}

func TestLargeFilesAreSentInTheirSmallestForm(t *testing.T) {
	s := serve(t, fstest.MapFS{"index.html.gz": gz(t, "<console>"), "play/weir.wasm.gz": gz(t, "\x00asm"), "play/weir.wasm.br": {Data: []byte("small")}})
	tags := map[string]string{} // by encoding
	for accepted, want := range map[string]string{
		"gzip, deflate, br, zstd": "br", "br": "br", "BR": "br",
		"gzip": "gzip", "br;q=0, gzip": "gzip", "br ; q=0, gzip": "gzip", "*;q=0, gzip": "gzip", "gzip, identity": "gzip",
		"identity": "", "": "", "deflate": "", "gzip;q=0": "", "*": "", "*;q=0, identity;q=0.1": "",
	} {
		res, body := get(t, "GET", s.URL+"/play/weir.wasm", "Accept-Encoding: "+accepted)
		h := res.Header
		if h.Get("Content-Encoding") != want || h.Get("Content-Type") != "application/wasm" || h.Get("Vary") != "Accept-Encoding" || (want == "br") != (body == "small") || (want == "") != (body == "\x00asm") {
			t.Errorf("%s: %v %q", accepted, h, body)
		}
		if want == "br" && res.ContentLength != 5 {
			t.Errorf("%s: length %d", accepted, res.ContentLength)
		}
		if tag := tags[want]; tag != "" && tag != h.Get("ETag") {
			t.Errorf("%s: %s, and %s before", accepted, h.Get("ETag"), tag)
		}
		tags[want] = h.Get("ETag")
		// Ranges aren't supported, so the whole file is sent.
		if part, text := get(t, "GET", s.URL+"/play/weir.wasm", "Accept-Encoding: "+accepted, "Range: bytes=1-2"); part.StatusCode != http.StatusOK || text != body {
			t.Errorf("%s, a range: %s %q", accepted, part.Status, text)
		}
	}
	if tags["br"] == tags["gzip"] || tags["gzip"] == tags[""] || tags["br"] == tags[""] {
		t.Errorf("forms that differ have one tag: %v", tags)
	}
	// A cached form of a file isn't valid for a request for another form.
	for coding, tag := range tags {
		for asked, own := range tags {
			for given, want := range map[string]bool{tag: tag == own, "W/" + tag: tag == own, `"x", ` + tag: tag == own, "*": true, `"x"`: false, strings.Trim(tag, `"`): false} {
				res, body := get(t, "GET", s.URL+"/play/weir.wasm", "Accept-Encoding: "+asked, "If-None-Match: "+given)
				if (res.StatusCode == http.StatusNotModified) != want || (body == "") != want || res.Header.Get("ETag") != own || res.Header.Get("Vary") != "Accept-Encoding" {
					t.Errorf("%q, asked for %q with %s: %s %v %q", coding, asked, given, res.Status, res.Header, body)
				}
			}
		}
	}
	if res, body := get(t, "HEAD", s.URL+"/play/weir.wasm", "Accept-Encoding: br"); res.ContentLength != 5 || body != "" || res.Header.Get("ETag") != tags["br"] {
		t.Errorf("HEAD: %d %v %q", res.ContentLength, res.Header, body)
	}
}

// Without Node, Go builds a binary whose dist contains only the file that git needs.
func TestWithoutTheUI(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{"nothing": {}, "half of it": {"assets/app.js.gz": gz(t, "app()")}} {
		s := serve(t, files)
		if open(files).Built() {
			t.Errorf("%s is taken for a console", name)
		}
		for _, path := range []string{"/console/", "/console/why", "/console/assets/app.js", "/play", "/play/weir.wasm"} {
			res, body := get(t, "GET", s.URL+path)
			if res.StatusCode != http.StatusNotFound || !strings.Contains(body, "make ui build") || res.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%s, %s: %s %q", name, path, res.Status, body)
			}
		}
	}
}
