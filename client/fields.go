package client

import (
	"regexp"
	"strings"
)

// item is a member of a structured field (RFC 9651): "name";key=value in a list, name=value in a dictionary.
type item struct {
	name   string
	quoted bool
	value  string
	params map[string]string // at most maxParams
}

// maxParams is how many parameters of an item are kept.
const maxParams = 8

// number returns the value of a parameter that is a number, or -1.
func (it *item) number(key string) float64 {
	if n := number(it.params[key]); n <= maxNumber {
		return n
	}
	return -1
}

// parseList parses the lines of a header. A header with an error counts as absent, as the RFC demands, and so does one that
// is too long.
func parseList(lines []string) []item {
	p := parser{rest: strings.Join(lines, ",")}
	if len(p.rest) > maxField {
		return nil
	}
	var items []item
	for p.blank(); p.rest != ""; p.blank() {
		it, ok := p.item()
		if !ok {
			return nil
		}
		if len(items) < maxItems {
			items = append(items, it)
		}
		p.blank()
		if p.rest != "" && !p.skip(",") {
			return nil
		}
	}
	return items
}

type parser struct{ rest string }

func (p *parser) blank() { p.rest = strings.TrimLeft(p.rest, " \t") }

func (p *parser) skip(c string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, c)
	return ok
}

func (p *parser) item() (it item, ok bool) {
	if it.name, it.quoted, ok = p.bare(); !ok || len(it.name) > maxName {
		return it, false
	}
	if !it.quoted && p.skip("=") {
		if it.value, _, ok = p.bare(); !ok {
			return it, false
		}
	}
	it.params = map[string]string{}
	for p.blank(); p.skip(";"); p.blank() {
		p.blank()
		key, quoted, ok := p.bare()
		value := ""
		if ok && p.skip("=") {
			value, _, ok = p.bare()
		}
		if !ok || quoted {
			return it, false
		}
		if len(it.params) < maxParams {
			it.params[key] = value
		}
	}
	return it, true
}

// bareItem matches a quoted string, bytes in base64, or else everything up to the next delimiter: a token or a number.
var bareItem = regexp.MustCompile(`(?s)^(?:"(?:[^"\\]|\\.)*"|:[^:]*:|[^:=;, \t"][^=;, \t"]*)`)

var unescape = strings.NewReplacer(`\"`, `"`, `\\`, `\`)

func (p *parser) bare() (s string, quoted, ok bool) {
	s = bareItem.FindString(p.rest)
	p.rest = p.rest[len(s):]
	if strings.HasPrefix(s, `"`) {
		if s = s[1 : len(s)-1]; strings.Contains(s, `\`) {
			s = unescape.Replace(s)
		}
		return s, true, true
	}
	return s, false, s != ""
}
