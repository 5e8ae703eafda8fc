package checkapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
)

// body holds the fields of a request. Its strings are parts of one large string, the received body, so clone those that
// outlast the request.
type body struct {
	req             weir.Request
	ip              string
	cost            int64
	limit           string // limit, burst, algorithm and mode are fields of /v1/take
	burst           int64
	algorithm, mode string
	id              string // the id of a check
	amounts         bool   // the body has amounts, even if they are empty
	receipt         string // receipt, status and unknown are fields of requests about receipts
	many            bool   // the body has a list of checks or receipts
	status          int64
	unknown         bool
}

// document reads src, which must be one object with the known fields. It turns errors of the
// decoder into errors for the caller.
func (c *workspace) document(src []byte, known []field) error {
	c.src, c.body, c.rest = string(src), body{cost: 1}, *bytes.NewBuffer(src)
	c.attrs, c.first, c.items, c.receipts = c.attrs[:0], 0, c.items[:0], c.receipts[:0]
	c.json.Reset(&c.rest, options...)
	err := c.object("body", known, nil)
	if err == nil {
		if rest := strings.TrimLeft(c.src[c.json.InputOffset():], " \t\r\n"); rest != "" {
			return notJSON(len(c.src)-len(rest), "nothing may follow the object")
		}
		return nil
	}
	broken, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, io.EOF):
		return jsonerror.Bad("the body is empty: send a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return notJSON(len(c.src), "the body ends too early")
	case ok && broken.JSONPointer != "":
		return notJSON(int(broken.ByteOffset), "%v, in %s", broken.Err, clip(string(broken.JSONPointer)))
	case ok:
		return notJSON(int(broken.ByteOffset), "%v", broken.Err)
	}
	return err
}

// The decoder doesn't check for repeated names or invalid UTF-8. The functions below do, so that an error in one check
// of a batch doesn't affect the others.
var options = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

func notJSON(offset int, format string, args ...any) error {
	return jsonerror.Bad("not valid JSON at byte %d: %s", offset+1, fmt.Sprintf(format, args...))
}

// object reads an object. It rejects repeated fields. It also rejects unknown fields, unless other reads them.
func (c *workspace) object(in string, known []field, other func(name string) error) error {
	var seen uint
	return c.elements(in, '{', func() error {
		name, err := c.value()
		if err == nil {
			name, err = c.text(name)
		}
		i := slices.IndexFunc(known, func(f field) bool { return f.name == name })
		switch {
		case err != nil:
			return err
		case i < 0 && other == nil:
			return unknownField(name, names(known))
		case i < 0:
			return other(name)
		case seen>>i&1 == 1:
			return jsonerror.Bad("%s: is given twice", label(in, name))
		}
		seen |= 1 << i
		return known[i].read(c, in, name)
	})
}

// label returns a name for a field in errors. If in is "attributes", the field is an attribute.
func label(in, name string) string {
	switch {
	case in != "attributes":
		return name
	case name == "user", name == "org", name == "tier":
		return "attributes." + name
	}
	return fmt.Sprintf("attributes[%q]", clip(name))
}

// elements reads an object or a list, and calls each for every member.
func (c *workspace) elements(field string, bracket jsontext.Kind, each func() error) error {
	if c.json.PeekKind() != bracket {
		value, err := c.value()
		return mismatch(field, kinds[bracket], value, err)
	}
	_, err := c.json.ReadToken()
	for err == nil {
		switch c.json.PeekKind() {
		case bracket + 2, jsontext.KindInvalid: // in ASCII, each closing bracket is its opening bracket + 2
			_, err = c.json.ReadToken()
			return err
		}
		err = each()
	}
	return err
}

var kinds = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number", '{': "an object", '[': "a list",
}

// mismatch returns the error for a value that has the wrong type or, if err isn't nil, that can't be read.
func mismatch(field, want, value string, err error) error {
	if err != nil {
		return err
	}
	return jsonerror.Bad("%s: must be %s, got %s", field, want, kinds[jsontext.Value(value).Kind()])
}

// value reads a value and returns its source text. For an object or a list, it returns only the opening bracket.
func (c *workspace) value() (string, error) {
	from := c.json.InputOffset()
	_, err := c.json.ReadToken()
	text := c.src[from:c.json.InputOffset()]
	for text != "" && (text[0] <= ' ' || text[0] == ',' || text[0] == ':') { // skip bytes that the decoder has skipped
		text = text[1:]
	}
	return text, err
}

// text decodes a string that was just read. If the string has no escapes, the result is a part of the source text.
func (c *workspace) text(quoted string) (string, error) {
	if !strings.ContainsFunc(quoted, func(r rune) bool { return r == '\\' || r >= utf8.RuneSelf }) {
		return quoted[1 : len(quoted)-1], nil
	}
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil { // reject invalid bytes: if they became U+FFFD, different keys would share a counter
		return "", notJSON(int(c.json.InputOffset())-len(quoted), "the string that begins here isn't UTF-8, or has half of a surrogate pair")
	}
	return string(text), nil
}

// textOf reads a string. If the value is null, the field stays unset.
func (c *workspace) textOf(in, name string, most int, into *string) error {
	value, err := c.value()
	switch {
	case value == "null":
		return nil
	case err != nil || value[0] != '"':
		return mismatch(label(in, name), "a string", value, err)
	}
	if *into, err = c.text(value); err == nil && len(*into) > most {
		return jsonerror.Bad("%s: must be at most %d bytes, got %d", label(in, name), most, len(*into))
	}
	return err
}

// wholeOf reads a whole number from low to high. If the value is null, the field stays unset.
func (c *workspace) wholeOf(field string, low, high int64, into *int64) error {
	value, err := c.value()
	switch {
	case value == "null":
		return nil
	case err != nil || jsontext.Value(value).Kind() != '0':
		return mismatch(field, "a whole number", value, err)
	}
	*into, err = strconv.ParseInt(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return jsonerror.Bad("%s: must be a whole number, written without fraction and exponent", field)
	case *into < low || *into > high: // the decoder clamps numbers that don't fit in 64 bits
		return jsonerror.Bad("%s: must be from %d to %d", field, low, high)
	}
	return nil
}

func (c *workspace) boolOf(field string, into *bool) error {
	value, err := c.value()
	switch value {
	case "true":
		*into = true
	case "false", "null":
	default:
		return mismatch(field, "true or false", value, err)
	}
	return nil
}

const edgeName = "check"

// complete completes the request from the fields of the body.
func (c *workspace) complete() error {
	c.req.Edge, c.req.KeyVerified, c.req.TierVerified = edgeName, true, true
	c.req.Cost, c.req.Peek = max(c.cost, 1), c.cost == 0
	if c.ip != "" {
		addr, err := netip.ParseAddr(c.ip)
		if err != nil {
			return jsonerror.Bad("ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1")
		}
		c.req.IP = addr.WithZone("")
	}
	if mine := c.attrs[c.first:]; len(mine) > 0 {
		c.req.Attr = mine.of
	}
	if c.req.Reserve > 0 {
		c.req.Receipt = true // a reservation can't be settled without a receipt
	}
	if c.id != "" {
		c.req.Repeat = c.repeat()
	}
	return nil
}

// elsewhere maps wrong names that people often use to the right names. Errors suggest the first of them that the body
// may have.
var elsewhere = map[string][]string{
	"api_key": {"key"}, "apikey": {"key"}, "id": {"key"},
	"url": {"path"}, "uri": {"path"}, "endpoint": {"path"},
	"address": {"ip"}, "client_ip": {"ip"}, "remote_addr": {"ip"},
	"quantity": {"cost"}, "hits": {"cost"}, "n": {"cost"}, "weight": {"cost"}, "amount": {"cost"},
	"tokens": {"amounts.tokens", "cost"}, "usd": {"amounts.usd"}, "usage": {"amounts"}, "used": {"amounts"},
	"model": {"attributes.model"}, "ttl": {"reserve"}, "request_id": {"id"}, "idempotency_key": {"id"},
	"user": {"attributes.user"}, "org": {"attributes.org"}, "tier": {"attributes.tier"},
	"rate": {"limit"}, "capacity": {"burst"}, "requests": {"checks"}, "items": {"checks"},
}

// unknownField returns the error for an unknown field. It suggests the field that the caller probably meant.
func unknownField(name string, known []string) error {
	written := strconv.Quote(shown.Name(name))
	meant := guess.Closest(name, known)
	for _, other := range elsewhere[strings.ToLower(name)] {
		if root, _, _ := strings.Cut(other, "."); meant == "" && slices.Contains(known, root) {
			meant = other
		}
	}
	if meant != "" {
		return jsonerror.Bad("there is no field %s: did you mean %q?", written, meant)
	}
	return jsonerror.Bad("there is no field %s: the fields are %s", written, strings.Join(known, ", "))
}

func clip(s string) string { return shown.Clip(s, 64) }
