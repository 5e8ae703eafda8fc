package usage

import (
	"bytes"
	"io"
	"strings"
)

// format is how an answer is put together.
type format uint8

const (
	other  format = iota // nothing is known of it yet
	whole                // a JSON document, or several
	lines                // one in each line
	events               // one in each of a stream's events
)

// formatOf reads a Content-Type.
func formatOf(contentType string) format {
	media, _, _ := strings.Cut(contentType, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); media {
	case "text/event-stream":
		return events
	case "application/x-ndjson", "application/ndjson", "application/stream+json", "application/jsonl",
		"application/x-jsonlines":
		return lines
	case "application/json":
		return whole
	}
	if strings.HasSuffix(media, "+json") {
		return whole
	}
	return other
}

// IsStream reports whether an answer of the Content-Type comes in parts: events, or lines.
func IsStream(contentType string) bool {
	f := formatOf(contentType)
	return f == events || f == lines
}

// IsPacked reports whether an answer of the Content-Type is a stream in a binary frame, as Bedrock sends it, which a [Reader] can't
// read.
func IsPacked(contentType string) bool {
	return strings.Contains(strings.ToLower(contentType), "amazon.eventstream")
}

// Reader reads the usage from an answer's body as it passes. The body must not be compressed. A
// Reader never fails, and never holds the body up: what it can't make sense of, it skips.
//
// It isn't safe for concurrent use.
type Reader struct {
	format  format
	answer  answer
	scanner scanner

	// Of a stream: the line under way.
	head    [len(dataField)]byte
	headLen int
	isData  bool
	mark    [len(doneMark) + 1]byte // the first bytes of its data that aren't spaces
	markLen int
	afterCR bool
	events  int64 // that were there so far, and the bytes of their data
	bytes   int64
}

const (
	dataField = "data:"
	doneMark  = "[DONE]" // OpenAI's last event
)

var _ io.Writer = (*Reader)(nil)

// NewReader returns a Reader of a body with the Content-Type: JSON, server-sent events, or lines of
// JSON. If it is another one, the first byte tells: clients may have a say in the type.
func NewReader(contentType string) *Reader {
	r := &Reader{format: formatOf(contentType)}
	r.scanner.visitor = &r.answer
	return r
}

// Usage returns what the answer has told so far, and whether that is anything. Called before the
// body's end, it may be less than what was used; Partial then says so.
func (r *Reader) Usage() (Usage, bool) {
	u := r.answer.counts.usage()
	u.Model = r.answer.model
	output := u.Output
	if !output.Known {
		output = u.Tokens
	}
	u.Partial = !r.answer.over && !r.isDone() || r.events/eventsPerToken > output.N
	return u, u.known()
}

// eventsPerToken is how many events a stream may have for each token of its output. More of them had text in them that it doesn't
// tell. Most streams have fewer events than tokens; pings and the like take some.
const eventsPerToken = 10

// frame is how many bytes of an event are around its text, about.
const frame = 250

// Streamed guesses how many tokens a stream has had so far, for one that doesn't tell it: one for each event, and one for every
// four bytes that an event has beyond what is around the text of a short one. It is 0 of other answers.
func (r *Reader) Streamed() int64 {
	return r.events + max(0, r.bytes-frame*r.events)/bytesPerToken
}

// Write reads the next part of the body. It takes all of it, without an error.
func (r *Reader) Write(p []byte) (int, error) {
	if r.format == other && r.scanner.visitor != nil {
		switch text := bytes.TrimLeft(p, blanks); {
		case len(text) == 0:
		case text[0] == '{', text[0] == '[':
			r.format = whole
		default:
			r.format = events
		}
	}
	switch r.format {
	case whole:
		r.readWhole(p)
	case lines, events:
		r.readLines(p)
	}
	return len(p), nil
}

// readWhole reads documents that follow one another. More than one is a stream whose sender calls
// it JSON.
func (r *Reader) readWhole(p []byte) {
	for len(p) > 0 && r.scanner.state != broken {
		p = p[r.scanner.feed(p):]
		if r.scanner.state == finished {
			r.answer.over = true
			r.scanner.reset()
		}
	}
}

// readLines cuts a body into lines, which end with LF, CR or both.
func (r *Reader) readLines(p []byte) {
	for len(p) > 0 {
		if p[0] == '\n' && r.afterCR {
			p = p[1:]
		}
		r.afterCR = false
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			r.readLine(p)
			return
		}
		r.readLine(p[:end])
		r.endLine()
		r.afterCR = p[end] == '\r'
		p = p[end+1:]
	}
}

// readLine reads a part of a line.
func (r *Reader) readLine(p []byte) {
	if r.format == lines {
		r.isData = true
	} else if r.headLen < len(dataField) {
		n := copy(r.head[r.headLen:], p)
		r.headLen += n
		r.isData = string(r.head[:r.headLen]) == dataField
		p = p[n:]
	}
	if !r.isData {
		return
	}
	r.bytes += int64(len(p))
	for i := 0; i < len(p) && r.markLen < len(r.mark); i++ {
		if p[i] != ' ' {
			r.mark[r.markLen] = p[i]
			r.markLen++
		}
	}
	r.scanner.feed(p)
}

// isDone reports whether the line under way says that the stream is over.
func (r *Reader) isDone() bool { return string(r.mark[:r.markLen]) == doneMark }

// endLine ends a line, and the document with it, if it is complete. The lines of an event's data
// are one document, and an empty line ends it; but some servers leave that out.
func (r *Reader) endLine() {
	switch {
	case r.isDone():
		r.answer.over = true
		r.scanner.reset()
		r.events--
	case r.format == lines, r.headLen == 0:
		r.scanner.reset()
	case r.isData:
		r.scanner.feed([]byte{'\n'})
		if r.scanner.state == finished {
			r.scanner.reset()
		}
	}
	if r.isData && r.markLen > 0 {
		r.events++
	}
	r.headLen, r.isData, r.markLen = 0, false, 0
}
