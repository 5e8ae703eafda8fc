package pattern

import (
	"slices"
	"strings"
	"testing"
)

// readingsOf returns a path's readings as text, or nil if it can't be read.
func readingsOf(path string) (out []string) {
	var p Readings
	if !p.Read(path) {
		return nil
	}
	for i := range p.Len() {
		out = append(out, string(p.At(i)[:max(1, len(p.At(i))-1)]))
	}
	return out
}

func TestReadings(t *testing.T) {
	for path, want := range map[string]string{
		// Most paths have one reading, however they are spelled.
		"":               "/",
		"/":              "/",
		"/login":         "/login",
		"/login/":        "/login",
		"/LOGIN":         "/login",
		"/login?a=b":     "/login",
		"login":          "/login",
		"/%6cogin":       "/login",
		"/%4Cogin":       "/login",
		"/%%36cogin":     "/login",
		"/a%20b":         "/a b",
		"/caf%C3%A9":     "/café",
		"/CAF\u00c9":     "/café",
		"/\u212Aelvin":   "/kelvin",
		"/STRA\u00dfE":   "/stra\u00dfe",
		"/\xff\xfe":      "/\xff\xfe",
		"/%":             "/%",
		"/%zz":           "/%zz",
		"/%2":            "/%2",
		"/a.b/c.d":       "/a.b/c.d",
		"/a/...":         "/a/...",
		"/.well-known/x": "/.well-known/x",

		// If servers disagree on something, the path is read in every way and in every order.
		"/a//b":                           "/a//b | /a/b",
		"/100%25":                         "/100%25 | /100%",
		"/%256cogin":                      "/%256cogin | /login",
		"/login;x=y":                      "/login;x=y | /login",
		"/search/;shoes":                  "/search/;shoes | /search",
		"/search/..;shoes":                "/search/..;shoes | /search/.. | /",
		"/a/../login":                     "/a/../login | /login",
		"/a/%2e%2e/login":                 "/a/%2e%2e/login | /a/../login | /login",
		"/a%2fb":                          "/a%2fb | /a/b",
		`/a\b`:                            `/a\b | /a/b`,
		"/login#x":                        "/login#x | /login",
		"/login%00.css":                   "/login%00.css | /login\x00.css | /login",
		"/login%3fx":                      "/login%3fx | /login?x | /login",
		"/login.":                         "/login. | /login",
		"/login%20":                       "/login  | /login",
		"//login":                         "//login | /login | /",
		"//host/login":                    "//host/login | /host/login | /login",
		`/\host/login`:                    `/\host/login | //host/login | /host/login | /login`,
		"http://host/login":               "/http://host/login | //host/login | /http:/host/login | /host/login | /login",
		"http:login":                      "/http:login | /login",
		"/login//..":                      "/login//.. | /login | / | /login/..",
		"/x%252fy/../login":               "/x%252fy/../login | /x%2fy/../login | /login | /x/y/../login | /x/login",
		"/login/;/..":                     "/login/;/.. | /login//.. | /login | / | /login/..",
		"/v1/x/..;/..;/y":                 "/v1/x/..;/..;/y | /v1/x/../../y | /y",
		"/search/%252e%252e%252fshoes":    "/search/%252e%252e%252fshoes | /search/%2e%2e%2fshoes | /search/../shoes | /search/..%2fshoes | /shoes",
		"/v1/x/%252e%252e/%252e%252e/y":   "/v1/x/%252e%252e/%252e%252e/y | /v1/x/%2e%2e/%2e%2e/y | /v1/x/../../y | /y",
		"/a;x/%3bq":                       "/a;x/%3bq | /a;x/;q | /a/%3bq | /a | /a;x | /a/;q",
		"/files/a%2F..%2Fb":               "/files/a%2f..%2fb | /files/a/../b | /files/b",
		"/proxy/https%3A%2F%2Fa.b%2F%3Fc": "/proxy/https:%2f%2fa.b%2f%3fc | /proxy/https://a.b/?c | /proxy/https:%2f%2fa.b%2f?c | /proxy/https:%2f%2fa.b%2f | /proxy/https://a.b | /proxy/https:/a.b/?c | /proxy/https:/a.b",
	} {
		got := readingsOf(path)
		want := strings.Split(want, " | ")
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q is read as\n%q, want\n%q", path, got, want)
		}
	}
}

// If a path counts as plain, no step changes it.
func FuzzReadings(f *testing.F) {
	for _, path := range []string{
		"", "/", "//", "/a", "/a/", "/A/b.c", "/a//b", "/.", "/a/..", "/a/.b", "/a. /b", "a/b", "/a%62", "/%2e%252f", "/a;x/..;y", `/a\b`, "/a?b", "/a#b",
		"/é", "/%c3%89", "/Ⱥ", "/%00", "%", "/%%36c", "http://h/a", "//h", "/;/;", "/..%3b/..%5c%2f/", "/a%3f%23",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		var p, q Readings
		if !p.Read(path) {
			return
		}
		if q.plain(path) {
			q.add(q.decode([]byte(path), decodeText))
			if got, want := string(p.At(0)), string(q.At(0)); got != want || q.list[0].odd != 0 {
				t.Fatalf("%q passes for %q, but is %q with oddities %b", path, got, want, q.list[0].odd)
			}
			return
		}
		if len(p.list) > maxReadings || len(p.text) > maxReadingBytes {
			t.Errorf("%q has %d readings, in %d bytes", path, len(p.list), len(p.text))
		}
		for i, r := range p.list {
			text := string(p.At(i))
			if !strings.HasPrefix(text, "/") || !strings.HasSuffix(text, "/") || len(text) > 1 && strings.HasSuffix(text, "//") {
				t.Errorf("%q is read as %q", path, text)
			}
			// Every step from this reading leads to another one in the list.
			before := len(p.list)
			if p.reread(r); len(p.list) != before || p.over {
				t.Errorf("%q: %q leads to %q, which isn't among its readings", path, text, p.At(before))
			}
		}
	})
}
