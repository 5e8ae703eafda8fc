package rulefile

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/internal/shown"
)

// secret is a key in a document, or a pattern or an address in the same place. Problems show it masked, because they
// are printed in terminals and build logs.
type secret struct {
	at   int
	path string // path of its value
	text string
}

// hide records the keys in a value: the names of a map, the items of a list, or the value itself.
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

// hidden masks the secrets of a document in its problems, which must come in the order of the file.
type hidden struct {
	src     *source
	secrets []secret // in the order of the text
	byPath  map[string]secret
	quoted  map[string]string // quoted secrets, and what replaces them in messages
	begin   int               // where the line of text and spots begins
	text    string
	spots   []spot
}

// spot is a part of a line that was masked. In the line it is at from..to, and in the masked line it ends at end.
type spot struct{ from, to, end int }

// minSecret is how long a key must be to be hidden. Shorter ones are names, and a mask would leave nothing of them.
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

// mask masks keys in a problem's path, text and hint.
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

// line returns the line of a place, and the place's offset in it, both after keys were masked.
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
	line := h.src.text[begin:h.src.lineEnd(begin)]
	var keys [][]int
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
		keys = append(keys, []int{from, to})
	}
	// There may be keys that weren't recognized: in a text that isn't YAML, or under a misspelled name.
	keys = append(keys, shown.Keys(line)...)
	slices.SortStableFunc(keys, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	var out strings.Builder
	done := 0
	h.spots = nil
	for _, k := range keys {
		if from, to := max(k[0], done), k[1]; from < to {
			out.WriteString(line[done:from])
			out.WriteString(shown.Entry(line[from:to]))
			h.spots, done = append(h.spots, spot{from, to, out.Len()}), to
		}
	}
	out.WriteString(line[done:])
	h.begin, h.text = begin, out.String()
}
