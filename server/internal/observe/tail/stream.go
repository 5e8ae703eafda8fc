package tail

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
)

// Decisions travel as Server-Sent Events, which Write encodes and Read decodes. We don't use tmaxmax/go-sse: when the
// connection is lost, it returns the truncated last event, which the specification says to discard.

// Write appends an event with v as JSON. It panics if v can't be encoded.
func Write(b *bytes.Buffer, event string, v any) {
	b.WriteString("event: " + event + "\ndata: ")
	enc := json.NewEncoder(b) // Encode ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // events consist of strings and numbers, which can't fail
	}
	b.WriteByte('\n')
}

// maxLine is the longest line in bytes that Read accepts.
const maxLine = 1 << 20

// Read calls tell with each named event, until the stream ends or tell returns an error. It drops a truncated event at the
// end of the stream.
func Read(r io.Reader, tell func(event string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var event string
	var data []string
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "":
			if event != "" {
				if err := tell(event, []byte(strings.Join(data, "\n"))); err != nil {
					return err
				}
			}
			event, data = "", nil
		case field == "event":
			event = value
		case field == "data":
			data = append(data, value)
		}
	}
	return lines.Err()
}
