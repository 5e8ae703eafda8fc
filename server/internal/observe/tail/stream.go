package tail

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
)

// Decisions are sent as Server-Sent Events. Write encodes them and Read decodes them. We don't use tmaxmax/go-sse: when
// a connection is lost, it returns the truncated last event, although the specification says to discard it.

// Write appends an event with the data v as JSON. It panics if v can't be encoded.
func Write(b *bytes.Buffer, event string, v any) {
	b.WriteString("event: " + event + "\ndata: ")
	enc := json.NewEncoder(b) // Encode also ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // can't happen: events consist of strings and numbers
	}
	b.WriteByte('\n')
}

// maxLine is the length of the longest line that Read accepts, in bytes.
const maxLine = 1 << 20

// Read calls tell with each event that has a name, until the stream ends or tell returns an error. It drops a truncated
// event at the end of the stream.
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
