package tail

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
)

// Decisions travel as Server-Sent Events. Write and Read are both ends of that. They are our own because the library that we
// tried, tmaxmax/go-sse, hands out the event that a lost connection cut off, which the specification says to discard.

// Write appends an event whose data is v as JSON. v must be one that JSON can carry.
func Write(b *bytes.Buffer, event string, v any) {
	b.WriteString("event: " + event + "\ndata: ")
	enc := json.NewEncoder(b) // ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // events are made of strings and numbers
	}
	b.WriteByte('\n')
}

// maxLine bounds the memory that a stream can take.
const maxLine = 1 << 20

// Read calls tell with each event that has a name, until the stream ends or tell returns an error. An event that the end of the
// stream cuts off is dropped.
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
