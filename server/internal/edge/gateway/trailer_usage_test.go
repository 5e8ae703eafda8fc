package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// The gateway drops the usage header of requests, also from trailers: an upstream that echoes headers would let a client choose its
// bill. It also drops digests of a body that it has changed.
func TestClientsCantReportUsage(t *testing.T) {
	const body = `{"model": "small", "stream": true, "max_tokens": 100, "messages": []}`
	for name, c := range map[string]struct {
		headers, trailers string
		arrives           string // the headers and trailers that reach the upstream
	}{
		"a header":                 {"X-Usage: 1\r\n", "", ""},
		"in lower case":            {"x-usage: 1\r\n", "", ""},
		"twice, in capitals":       {"X-USAGE: 1\r\nX-usage: 2\r\n", "", ""},
		"a header of a connection": {"Connection: X-Usage\r\nX-Usage: 1\r\n", "", ""},
		"a trailer":                {"Trailer: X-Usage\r\n", "X-Usage: 1\r\n", ""},
		"a trailer in lower case":  {"Trailer: x-usage, X-Other\r\n", "x-usage: 1\r\nX-Other: 2\r\n", "X-Other=2 "},
		"a trailer as none is":     {"", "X-Usage: 1\r\n", ""},
		"a trailer and a header":   {"Trailer: X-USAGE\r\nX-Usage: 1\r\n", "X-USAGE: 2\r\n", ""},
		"a seal":                   {"Content-MD5: x\r\nDigest: x\r\n", "", ""},
		"a seal as a trailer":      {"Trailer: Content-MD5, content-digest, Repr-Digest\r\n", "Content-MD5: x\r\ncontent-digest: x\r\nRepr-Digest: x\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := limiterOf(t, weir.Options{}, daily("tokens", 1000))
			handled, arrived := make(chan struct{}, 1), make(chan string, 1)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				seen := ""
				for _, h := range []http.Header{r.Header, r.Trailer} {
					for _, field := range []string{"X-Usage", "X-Other", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
						for _, v := range h[field] {
							seen += field + "=" + v + " "
							if field == "X-Usage" {
								w.Header().Add(field, v)
							}
						}
					}
				}
				arrived <- seen
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Trailer", "X-Usage")
				io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":50}}\n\ndata: [DONE]\n\n")
				w.Header().Set("X-Usage", "1") // a trailer, which the gateway doesn't read
			})
			d := start(t, setup{upstream: up.URL, limiter: l, handled: handled, opts: Options{UsageHeader: "X-Usage"}})
			d.raw(t, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\n%s\r\n",
				c.headers, len(body), body, c.trailers))
			await(t, handled, "the end at the gateway")
			if got := await(t, arrived, "the request"); got != c.arrives {
				t.Errorf("%q arrived, want %q", got, c.arrives)
			}
			if got := left(t, l)["tokens"]; got != "948" {
				t.Errorf("%s tokens left, want 948", got)
			}
			if strings.Contains(d.log.String(), "panic") {
				t.Error(d.log)
			}
		})
	}
}
