package tail

import (
	"bufio"
	"io"
	"strings"
)

// Read tells of each event of a stream, until it ends or telling fails.
func Read(r io.Reader, tell func(event string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	event, data := "", ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			event = value
		case "data":
			data = value
		case "":
			if event == "" {
				continue
			}
			if err := tell(event, []byte(data)); err != nil {
				return err
			}
			event, data = "", ""
		}
	}
	return lines.Err()
}
