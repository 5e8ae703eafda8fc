package usage

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// format is the structure of an answer.
type format uint8

const (
	other  format = iota // not known yet
	whole                // one JSON document, or several in succession
	lines                // a document in each line
	events               // a document in each Server-Sent Event
	packed               // a stream that can't be parsed: compressed, or in Bedrock's binary frames
	sealed               // a compressed document
)

// formatOf determines the format of an answer by its Content-Type and Content-Encoding.
func formatOf(contentType, encoding string) (f format) {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	switch media = strings.TrimSpace(media); {
	case strings.Contains(media, "amazon.eventstream"):
		return packed
	case media == "text/event-stream":
		f = events
	case slices.Contains(linesTypes, media):
		f = lines
	case media == "application/json", strings.HasSuffix(media, "+json"):
		f = whole
	}
	switch {
	case encoding == "" || strings.EqualFold(encoding, "identity"):
		return f
	case f == events, f == lines:
		return packed
	}
	return sealed
}

var linesTypes = []string{
	"application/x-ndjson", "application/ndjson", "application/stream+json", "application/jsonl", "application/x-jsonlines",
}

// Reader reads the usage from an answer's body as the body passes. It never fails and never delays the body: it skips
// data that it can't parse.
//
// It isn't safe for concurrent use.
type Reader struct {
	format  format
	answer  answer
	scanner scanner

	// head is the beginning of the current line of a stream.
	head    [len(dataField)]byte
	headLen int
	isData  bool
	mark    [len(doneMark) + 1]byte // the beginning of the line's data, without leading spaces
	markLen int
	afterCR bool
	events  int64 // number of events so far
	bytes   int64 // bytes of data in these events, or all bytes of a packed stream
}

const (
	dataField = "data:"
	doneMark  = "[DONE]" // the data of OpenAI's last event
)

var _ io.Writer = (*Reader)(nil)

// NewReader returns a Reader for a body with the given Content-Type. Known types are JSON, Server-Sent Events, and
// lines of JSON. For any other type, the first byte of the body decides, because clients may influence the type. A body
// with a Content-Encoding can't be parsed.
func NewReader(contentType, encoding string) *Reader {
	r := &Reader{format: formatOf(contentType, encoding)}
	r.scanner.visitor = &r.answer
	return r
}

// Usage returns the usage that the answer has reported so far, and whether it has reported any. If Partial is set, the
// usage may be too low, for example because the body hasn't ended.
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

const (
	// eventsPerToken is how many events per output token are plausible. If a stream has more, it has sent text that its
	// usage doesn't include. Most streams have fewer events than tokens.
	eventsPerToken = 10
	frame          = 250 // the approximate size of an event without its text, in bytes
)

// Streamed estimates how many tokens a stream has had so far, for streams that don't report a usage. It counts one
// token for each event, and one for every four bytes by which events are longer than frame, which is the size of an
// event with a short text. If it can't parse the stream, it counts one token for each byte. For answers that aren't
// streams, it returns 0.
func (r *Reader) Streamed() int64 {
	if r.format == packed {
		return r.bytes
	}
	return r.events + max(0, r.bytes-frame*r.events)/bytesPerToken
}

// Write reads the next part of the body. It always reads all of p and returns no error.
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
	case whole: // one document or several, for example a stream whose Content-Type is that of JSON
		for rest := p; len(rest) > 0 && r.scanner.state != broken; {
			rest = rest[r.scanner.feed(rest):]
			if r.scanner.state == finished {
				r.answer.over = true
				r.scanner.reset()
			}
		}
	case lines, events:
		r.readLines(p)
	case packed:
		r.bytes += int64(len(p))
	}
	return len(p), nil
}

// readLines splits a body into lines. Lines end with LF, CR or both.
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

// isDone reports whether the current line is the one that ends the stream.
func (r *Reader) isDone() bool { return string(r.mark[:r.markLen]) == doneMark }

// endLine handles the end of a line and, if a document is complete, the end of that document. The data lines of an
// event form one document. After them there should be an empty line, but some servers omit it.
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
