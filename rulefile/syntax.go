package rulefile

import (
	"errors"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// advice says in the words of a rule file what the YAML library says in its own.
type advice struct {
	message string // what the library's message begins with
	text    string
	hint    string
}

var advices = []advice{
	{"could not find end character of double-quoted text", `the quote " that opens here is never closed`, ""},
	{"could not find end character of single-quoted text", `the quote ' that opens here is never closed`, ""},
	{"found unknown escape character", `has a backslash that means nothing between double quotes`, `write it between single quotes, where a backslash is a backslash`},
	{"not enough length for escaped", `has an escape that is too short`, `write it between single quotes, where a backslash is a backslash`},
	{"found unexpected document separator", "a quote is still open here", "is there a quote missing above?"},
	{"'@' is a reserved character", "text that begins with @ must be quoted", ""},
	{"'`' is a reserved character", "text that begins with ` must be quoted", ""},
	{"found invalid tag character", "text that begins with ! must be quoted", ""},
	{"value is not allowed in this context. map key-value is pre-defined", "doesn't belong here: the field above already has a value", "is this line indented too far?"},
	{"value is not allowed in this context", "doesn't belong here", "is this line indented like its neighbours?"},
	{"mapping value is not allowed in this context", "a field's value can't be another field on the same line", "begin a new line, or quote text that holds a colon"},
	{"unexpected scalar value", "doesn't belong here", "is a comma or a quote missing before it?"},
	{"non-map value is specified", "must be a field of the map above, name: value", "is a colon missing, or is this line indented too little?"},
	{"block sequence entries are not allowed in this context", "a list with dashes begins on a line of its own", "begin a new line, or write [a, b]"},
	{"unexpected key name", "must be the name of a field", ""},
	{"found an invalid key for this map", "there is no name before this colon", "quote text that holds a colon"},
	{"',' or '}' must be specified", "a comma is missing before this", "quote text that holds any of [ ] { } , : #"},
	{"',' or ']' must be specified", "a comma is missing before this", "quote text that holds any of [ ] { } , : #"},
	{"could not find flow map content", "must be name: value", ""},
	{"expected sequence element, but found ','", "there is nothing before this comma", ""},
	{"map key definition includes an implicit line break", "a name and its colon must stand on one line", ""},
}

// fieldNameLetters are what the names of the language's fields are made of.
const fieldNameLetters = "abcdefghijklmnopqrstuvwxyz_"

// addSyntax notes why the YAML library's parser gave up.
func addSyntax(err error, list *problems) {
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) && syntax.Token != nil {
		p := advise(syntax.Message, placeOf(syntax.Token), list)
		if name, _, ok := strings.Cut(syntax.Token.Value, ":"); ok && isScalar(syntax.Token) && strings.Trim(name, fieldNameLetters) == "" {
			p.Hint = "is a space missing behind the colon?"
		}
		return
	}
	list.add(place{}, "", "is not valid YAML: %v", err)
}

// addInvalid notes a token that the YAML library's lexer could make nothing of.
func addInvalid(tk *token.Token, list *problems) { advise(tk.Error, placeOf(tk), list) }

func advise(message string, at place, list *problems) *Problem {
	for _, a := range advices {
		if strings.HasPrefix(message, a.message) {
			p := list.add(at, "", "%s", a.text)
			p.Hint = a.hint
			return p
		}
	}
	return list.add(at, "", "is not valid YAML: %s", message)
}
