package rulefile

import (
	"fmt"
	"slices"

	"github.com/weirhq/weir/internal/shown"
)

// node is a value of the document and where it stands.
type node struct {
	kind     kind
	at       int    // where messages point to; for a map on the lines below its name, that is the name
	from, to int    // where the value is written
	text     string // the text of a scalar
	quoted   bool   // a scalar that is text, whatever it looks like
	flow     bool   // between brackets or braces
	children []child
}

// child is a field of a map, or an item of a list.
type child struct {
	name  string
	at    int // where the name begins, or the item with its dash
	colon int // where the colon behind the name ends
	value *node
}

type kind uint8

const (
	empty kind = iota // nothing was written, or null
	scalar
	mapping
	sequence
)

// get returns the field of a map with a name, and its index, or -1.
func (n *node) get(name string) (child, int) {
	i := slices.IndexFunc(n.children, func(f child) bool { return f.name == name })
	if i < 0 {
		return child{}, -1
	}
	return n.children[i], i
}

func (n *node) last() *child { return &n.children[len(n.children)-1] }

// describe names the value, for messages that expected something else.
func (n *node) describe() string {
	switch n.kind {
	case mapping:
		return "a map of fields"
	case sequence:
		return "a list"
	case scalar:
		if n.quoted || !isLiteral(n.text) {
			return fmt.Sprintf("%q", shorten(n.text))
		}
		return n.text
	}
	return "nothing"
}

// isLiteral reports whether unquoted text is a number, true or false. Messages show these without quotes.
func isLiteral(s string) bool {
	_, isNumber := parseNumber(s)
	return isNumber || s == "true" || s == "false"
}

// shorten cuts text that is too long to repeat in a message.
func shorten(s string) string { return shown.Clip(s, 64) }
