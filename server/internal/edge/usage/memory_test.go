//go:build !race

// This runs without the race detector, which uses memory of its own.

package usage

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

const long = 64 << 20

// repeat writes a text until n bytes are written.
func repeat(w io.Writer, text string, n int) {
	part := []byte(text)
	for ; n > 0; n -= len(part) {
		_, _ = w.Write(part)
	}
}

// Reading a response of 64 MB takes no more memory than reading a short one, whatever the response contains.
func TestMemoryOfLongAnswers(t *testing.T) {
	const used = `"usage":{"prompt_tokens":5,"completion_tokens":6000000}`
	for _, c := range []struct{ name, contentType, begin, middle, end string }{
		{"one string", typeJSON, `{"model":"m","data":"`, strings.Repeat("iVBORw0KGgo\\/", 2500), `",` + used + `}`},
		{"one name", typeJSON, `{"model":"m","`, strings.Repeat("n", 32<<10), `":1,` + used + `}`},
		{"one number", typeJSON, `{"model":"m","n":1`, strings.Repeat("0", 32<<10), `,` + used + `}`},
		{"many values", typeJSON, `{"model":"m","data":[0`, strings.Repeat(`,{"embedding":[0.5,-1e-3],"x":null}`, 900), `],` + used + `}`},
		{"many models", typeJSON, `{`, strings.Repeat(`"model":"m",`+used+`,`, 600), `"model":"m",` + used + `}`},
		{"an array", typeJSON, `[{}`, strings.Repeat(`,{"modelVersion":"m","candidates":[{}],`+used+`}`, 300), `]`},
		{"events", typeEvents, "", strings.Repeat("data: {\"model\":\"m\","+used+"}\n\n", 500), "data: [DONE]\n\n"},
		{"one line", typeEvents, "", strings.Repeat("data", 8000), "\n\ndata: {\"model\":\"m\"," + used + "}\n\ndata: [DONE]\n\n"},
		{"lines", typeLines, "", strings.Repeat("{\"model\":\"m\",\"done\":true,"+used+"}\n", 500), ""},
		{"deep", typeLines, "", strings.Repeat("[", 32<<10), "\n{\"model\":\"m\",\"done\":true," + used + "}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := NewReader(c.contentType, "")
			_, _ = io.WriteString(r, c.begin)
			repeat(r, c.middle, long)
			_, _ = io.WriteString(r, c.end)
			got := describe(r.Usage())
			runtime.ReadMemStats(&after)
			grown := after.TotalAlloc - before.TotalAlloc
			if want := "m 5+?+6000000=6000005"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if grown > 256<<10 { // a copy of a part, a few names, and the test's own allocations
				t.Errorf("%d KB allocated for %d MB", grown>>10, long>>20)
			}
		})
	}
	if size := unsafe.Sizeof(Reader{}); size > 3<<10 {
		t.Errorf("a Reader takes %d bytes", size)
	}
}

// Once the model is known, events cause no allocations.
func TestMemoryOfEvents(t *testing.T) {
	_, body := load(t, "anthropic.sse")
	r := NewReader(typeEvents, "")
	event := []byte(body)
	if n := testing.AllocsPerRun(100, func() { _, _ = r.Write(event) }); n != 0 {
		t.Errorf("%v allocations for %d bytes", n, len(event))
	}
}

// BenchmarkReader reads a body once, as the gateway does.
func BenchmarkReader(b *testing.B) {
	_, chat := load(b, "openai-chat.sse")
	for _, c := range []struct{ name, contentType, body string }{
		{"events", typeEvents, chat},
		{"picture", typeJSON, fmt.Sprintf(`{"data":%q,"usage":{"prompt_tokens":5}}`, strings.Repeat("iVBORw0KGgo", 10_000))},
		{"text", typeJSON, fmt.Sprintf(`{"data":%q,"usage":{"prompt_tokens":5}}`, strings.Repeat("A line of \"text\", as they are.\n", 3000))},
		{"embeddings", typeJSON, `{"data":[0` + strings.Repeat(",-0.009327292", 10_000) + `]}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := []byte(c.body)
			r := NewReader(c.contentType, "")
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.Write(body)
			}
		})
	}
}

func BenchmarkReadRequest(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"max_tokens":500,"messages":[{"role":"user","content":"hi"}` +
		strings.Repeat(`,{"role":"user","content":[{"type":"text","text":"What is in this picture, and is it any good?"}]}`, 100) + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		readRequest(body)
	}
}
