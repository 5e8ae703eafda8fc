package rulefile

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/shown"
)

// secret is a key that a document names, or a pattern or an address among them. Problems show it masked, since they are
// printed in terminals and in the logs of builds.
type secret struct {
	at   int
	path string // of its value
	text string
}

// hide notes the keys in a value: the names of a map, the items of a list, or the value itself.
func (d *decoder) hide(v value) {
	if v.node == nil {
		return
	}
	if v.kind == scalar {
		d.src.secrets = append(d.src.secrets, secret{v.from, v.path, v.text})
	}
	for i, c := range v.children {
		s := secret{c.value.from, index(v.path, i), c.value.text}
		if v.kind == mapping {
			s = secret{c.at, join(v.path, c.name), c.name}
		}
		d.src.secrets = append(d.src.secrets, s)
	}
}

// hidden masks the secrets of a document in its problems. Its problems come in the order of the file.
type hidden struct {
	src     *source
	secrets []secret // in the order of the text
	byPath  map[string]secret
	quoted  map[string]string // masked, as messages quote them
	begin   int               // of the line that text and spots are of
	text    string
	spots   []spot
}

// spot is where a line was masked: what stood from..to now ends at end.
type spot struct{ from, to, end int }

// minSecret is how long a key is that is worth hiding. Shorter ones are names, and a mask would leave nothing of them.
const minSecret = 12

func newHidden(src *source) *hidden {
	h := &hidden{src: src, byPath: map[string]secret{}, quoted: map[string]string{}, begin: nowhere}
	for _, s := range src.secrets {
		if mask := shown.Entry(s.text); mask != s.text && len(s.text) >= minSecret {
			h.secrets = append(h.secrets, s)
			h.byPath[s.path] = s
			h.quoted[strconv.Quote(s.text)] = strconv.Quote(mask)
			h.quoted[strconv.Quote(shorten(s.text))] = strconv.Quote(mask)
		}
	}
	slices.SortFunc(h.secrets, func(a, b secret) int { return cmp.Compare(a.at, b.at) })
	return h
}

var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// mask hides keys in a problem's path, text and hint.
func (h *hidden) mask(p *Problem) {
	for path := p.Path; path != ""; path = parent(path) {
		if s, ok := h.byPath[path]; ok {
			mask := strings.NewReplacer(s.text, shown.Entry(s.text))
			p.Path, p.Text, p.Hint = mask.Replace(p.Path), mask.Replace(p.Text), mask.Replace(p.Hint)
			break
		}
	}
	unquoted := func(q string) string {
		if mask, ok := h.quoted[q]; ok {
			return mask
		}
		return q
	}
	p.Text, p.Hint = quotedText.ReplaceAllStringFunc(p.Text, unquoted), quotedText.ReplaceAllStringFunc(p.Hint, unquoted)
}

// line is the line of a place and its offset in it, both without the keys that stand there.
func (h *hidden) line(at int) (string, int) {
	if begin := h.src.lineBegin(at); h.begin != begin {
		h.maskLine(begin)
	}
	offset, shift := at-h.begin, 0
	for _, s := range h.spots {
		switch {
		case offset >= s.to:
			shift = s.end - s.to
		case offset > s.from:
			return h.text, s.end // within the key
		}
	}
	return h.text, offset + shift
}

func (h *hidden) maskLine(begin int) {
	line, done := h.src.text[begin:h.src.lineEnd(begin)], 0
	var out strings.Builder
	h.spots = nil
	hide := func(from, to int) {
		out.WriteString(line[done:from])
		out.WriteString(shown.Entry(line[from:to]))
		h.spots, done = append(h.spots, spot{from, to, out.Len()}), to
	}
	guess := func(end int) {
		start := done
		// Where no key was understood, one may stand all the same: in a text that isn't YAML, or under a misspelt name.
		for _, w := range shown.Keys(line[start:max(start, end)]) {
			hide(start+w[0], start+w[1])
		}
	}
	first, _ := slices.BinarySearchFunc(h.secrets, begin, func(s secret, begin int) int { return cmp.Compare(s.at, begin) })
	for _, s := range h.secrets[first:] {
		from := s.at - begin
		if from >= len(line) {
			break
		}
		to := from + len(s.text)
		if line[from] == '"' || line[from] == '\'' {
			to = from + quotedLen(line[from:]) - 1
			from++
		}
		if guess(from); from >= done {
			hide(from, to)
		}
	}
	guess(len(line))
	out.WriteString(line[done:])
	h.begin, h.text = begin, out.String()
}
