package tail_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirhq/weir/server/internal/observe/tail"
)

func TestStream(t *testing.T) {
	var out bytes.Buffer
	tail.Write(&out, "pulse", tail.Pulse{Seen: 3, OneIn: 1})
	tail.Write(&out, "end", struct {
		Text string `json:"text"`
	}{"<b>\n"})
	const others = "retry: 5\r\n: a comment\r\nevent:named\r\n: another\r\ndata:a\r\ndata:  b\r\n\r\ndata: no name\n\nevent: pulse\ndata: cut off"
	var got strings.Builder
	err := tail.Read(strings.NewReader(out.String()+others), func(event string, data []byte) error {
		got.WriteString(event + " " + string(data) + "|")
		return nil
	})
	const want = `pulse {"seen":3,"sent":0,"left_out":0,"one_in":1}|end {"text":"<b>\n"}|named a` + "\n b|"
	if err != nil || got.String() != want {
		t.Errorf("got %q, %v", got.String(), err)
	}
	if err := tail.Read(strings.NewReader("event: "+strings.Repeat("a", 2<<20)), nil); err == nil {
		t.Error("read a line of 2 MiB")
	}
}
