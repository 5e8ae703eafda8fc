package checkapi

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
)

// What each body may hold.
var (
	checkFields   = []string{"key", "method", "path", "ip", "attributes", "cost", "receipt"}
	subjectFields = []string{"user", "org", "tier"} // of attributes, beside others
	batchFields   = []string{"checks"}
	takeFields    = []string{"key", "limit", "burst", "cost", "receipt", "algorithm", "mode"}
	refundFields  = []string{"receipt"}
)

// body is what the fields of a check, a take or a refund held. Its texts are parts of one string,
// the body as it came: a caller that keeps one of them has to clone it.
type body struct {
	req             weir.Request
	ip              string
	cost            int64
	limit           string // this and the next three are of a take
	burst           int64
	algorithm, mode string
	receipt         string // of a refund
}

type attribute struct{ name, value string }

// document reads src, which must be one object of these fields.
func (c *call) document(src []byte, known []string, read func(name string) error) error {
	c.parser, c.body = parser{src: string(src)}, body{cost: 1}
	if c.peek(); c.pos == len(c.src) {
		return jsonerror.Bad("the body is empty: send a JSON object")
	}
	if err := c.object("body", known, read, nil); err != nil {
		return err
	}
	if c.peek(); c.pos < len(c.src) {
		return c.syntax("nothing may follow the object")
	}
	return nil
}

// object reads an object. It refuses fields that are given twice, and those it doesn't know unless other reads them.
func (c *call) object(field string, known []string, read, other func(name string) error) error {
	if c.peek() != '{' {
		return c.mismatch(field, "an object")
	}
	var seen uint
	return c.elements('}', func() error {
		name, err := c.name()
		i := slices.Index(known, name)
		switch {
		case err != nil:
			return err
		case i < 0 && other == nil:
			return unknownField(name, known)
		case i < 0:
			return other(name)
		case seen>>i&1 == 1 && field == "attributes":
			return jsonerror.Bad("attributes.%s: is given twice", name)
		case seen>>i&1 == 1:
			return jsonerror.Bad("%s: is given twice", name)
		}
		seen |= 1 << i
		return read(name)
	})
}

// textOf reads a string, or a null as no string at all.
func (c *call) textOf(field string, most int, into *string) (err error) {
	if c.peek() != '"' {
		if c.literal("null") {
			return nil
		}
		return c.mismatch(field, "a string")
	}
	if *into, err = c.text(); err == nil && len(*into) > most {
		return jsonerror.Bad("%s: must be at most %d bytes, got %d", field, most, len(*into))
	}
	return err
}

// wholeOf reads a whole number within bounds, or a null as none.
func (c *call) wholeOf(field string, low, high int64, into *int64) error {
	if !beginsNumber(c.peek()) {
		if c.literal("null") {
			return nil
		}
		return c.mismatch(field, "a whole number")
	}
	text, err := c.number()
	if err != nil {
		return err
	}
	*into, err = strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return jsonerror.Bad("%s: must be a whole number, written without fraction and exponent", field)
	case *into < low || *into > high: // also of one that isn't of 64 bits, which is read as the nearest
		return jsonerror.Bad("%s: must be from %d to %d", field, low, high)
	}
	return nil
}

func (c *call) boolOf(field string, into *bool) error {
	switch {
	case c.literal("true"):
		*into = true
	case c.literal("false"), c.literal("null"):
	default:
		return c.mismatch(field, "true or false")
	}
	return nil
}

// checkField reads a field of /v1/check.
func (c *call) checkField(name string) error {
	switch name {
	case "key":
		return c.textOf(name, MaxText, &c.req.APIKey)
	case "method":
		return c.textOf(name, MaxText, &c.req.Method)
	case "path":
		return c.textOf(name, MaxBody, &c.req.Path)
	case "ip":
		return c.textOf(name, MaxText, &c.ip)
	case "cost":
		return c.wholeOf(name, 0, MaxCost, &c.cost)
	case "receipt":
		return c.boolOf(name, &c.req.Receipt)
	}
	if c.literal("null") {
		return nil
	}
	return c.object("attributes", subjectFields, c.subjectField, c.attributeField)
}

func (c *call) subjectField(name string) error {
	switch name {
	case "user":
		return c.textOf("attributes.user", MaxText, &c.req.User)
	case "org":
		return c.textOf("attributes.org", MaxText, &c.req.Org)
	}
	return c.textOf("attributes.tier", MaxText, &c.req.Tier)
}

// attributeField reads an attribute of another name.
func (c *call) attributeField(name string) error {
	mine := c.attrs[c.first:]
	switch {
	case name == "" || len(name) > MaxAttributeName:
		return jsonerror.Bad("attributes: a name must have from 1 to %d bytes", MaxAttributeName)
	case len(mine) == MaxAttributes:
		return jsonerror.Bad("attributes: there may be at most %d beside user, org and tier", MaxAttributes)
	}
	label := func() string { return fmt.Sprintf("attributes[%q]", clip(name)) }
	for i := range mine {
		if sameAttribute(mine[i].name, name) {
			return jsonerror.Bad("%s: is given twice", label())
		}
	}
	x := attribute{name: name}
	if b := c.peek(); b != '"' && b != 'n' {
		return c.mismatch(label(), "a string")
	}
	if err := c.textOf("attributes", MaxBody, &x.value); err != nil {
		return err
	}
	if n := len(x.value); n > MaxText {
		return jsonerror.Bad("%s: must be at most %d bytes, got %d", label(), MaxText, n)
	}
	c.attrs = append(c.attrs, x)
	return nil
}

// sameAttribute reports whether two names answer one question of the rules:
// attr:region is region, and the names of headers have no case.
func sameAttribute(a, b string) bool {
	a, b = strings.TrimPrefix(a, "attr:"), strings.TrimPrefix(b, "attr:")
	x, isHeader := strings.CutPrefix(a, "header:")
	y, alsoHeader := strings.CutPrefix(b, "header:")
	return a == b || isHeader && alsoHeader && strings.EqualFold(x, y)
}

// takeField reads a field of /v1/take.
func (c *call) takeField(name string) error {
	switch name {
	case "limit":
		return c.textOf(name, 64, &c.limit)
	case "burst":
		return c.wholeOf(name, 1, weir.MaxTokens, &c.burst)
	case "algorithm":
		return c.textOf(name, MaxText, &c.algorithm)
	case "mode":
		return c.textOf(name, MaxText, &c.mode)
	}
	return c.checkField(name) // which has the others
}

// edge is the check API's name for observers.
const edge = "check"

// complete makes a request of what was read.
func (c *call) complete() error {
	c.req.Edge, c.req.KeyVerified, c.req.TierVerified = edge, true, true
	c.req.Cost, c.req.Peek = max(c.cost, 1), c.cost == 0
	if c.ip != "" {
		addr, err := netip.ParseAddr(c.ip)
		if err != nil {
			return jsonerror.Bad("ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1")
		}
		c.req.IP = addr.WithZone("")
	}
	return nil
}

// elsewhere are names that people try, and how the thing is called here.
var elsewhere = map[string]string{
	"api_key": "key", "apikey": "key", "id": "key",
	"url": "path", "uri": "path", "endpoint": "path",
	"address": "ip", "client_ip": "ip", "remote_addr": "ip",
	"tokens": "cost", "quantity": "cost", "hits": "cost", "n": "cost", "amount": "cost", "weight": "cost",
	"user": "attributes.user", "org": "attributes.org", "tier": "attributes.tier",
	"rate": "limit", "capacity": "burst", "requests": "checks", "items": "checks",
}

// unknownField names a field that doesn't exist and, if there is a guess, the one that was meant.
func unknownField(name string, known []string) error {
	shown := strconv.Quote(clip(name))
	meant := guess.Closest(name, known)
	if meant == "" {
		meant = elsewhere[strings.ToLower(name)]
		if root, _, _ := strings.Cut(meant, "."); !slices.Contains(known, root) {
			meant = ""
		}
	}
	if meant != "" {
		return jsonerror.Bad("there is no field %s: did you mean %q?", shown, meant)
	}
	return jsonerror.Bad("there is no field %s: the fields are %s", shown, strings.Join(known, ", "))
}

// clip keeps a name from filling the answer.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
