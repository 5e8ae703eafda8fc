package checkapi

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/jsonerror"
)

// body is what the fields of a check or a take held. Texts are decoded into one
// buffer and become strings in one piece once all are known: one allocation for
// a request, however many fields it has, and nothing that keeps the whole body alive.
type body struct {
	seen  uint16 // fields that were there, by their bit
	texts []byte

	key, method, path, ip span
	user, org, tier       span
	limit                 span
	receiptText           span
	attributes            []attributeSpan

	cost, burst int64
	receipt     bool
	algorithm   weir.Algorithm
	mode        mode
}

type span struct{ from, to int }

func (s span) of(text string) string { return text[s.from:s.to] }

type attributeSpan struct{ name, value span }

type attribute struct{ name, value string }

func (b *body) reset() {
	*b = body{texts: b.texts[:0], attributes: b.attributes[:0], cost: 1}
}

// The bits of seen.
const (
	hasKey = 1 << iota
	hasMethod
	hasPath
	hasIP
	hasAttributes
	hasCost
	hasReceipt
	hasLimit
	hasBurst
	hasAlgorithm
	hasMode
	hasUser
	hasOrg
	hasTier
)

// once notes a field, and refuses a second one of its name.
func (b *body) once(bit uint16, name string) error {
	if b.seen&bit != 0 {
		return jsonerror.Bad("%s: is given twice", name)
	}
	b.seen |= bit
	return nil
}

// text reads a string, or a null as no string at all.
func (b *body) text(p *parser, bit uint16, name string, most int, into *span) error {
	if err := b.once(bit, name); err != nil {
		return err
	}
	return b.anyText(p, name, most, into)
}

func (b *body) anyText(p *parser, name string, most int, into *span) error {
	if p.peek() != '"' {
		if p.null() {
			return nil
		}
		return p.mismatch(name, "a string")
	}
	from := len(b.texts)
	var err error
	if b.texts, err = p.text(b.texts); err != nil {
		return err
	}
	*into = span{from, len(b.texts)}
	if n := len(b.texts) - from; n > most {
		return jsonerror.Bad("%s: must be at most %d bytes, got %d", name, most, n)
	}
	return nil
}

// int reads a whole number within bounds, or a null as none.
func (b *body) int(p *parser, bit uint16, name string, low, high int64, into *int64) error {
	if err := b.once(bit, name); err != nil || p.null() {
		return err
	}
	n, err := p.int(name)
	if err != nil {
		return err
	}
	if n < low || n > high {
		return jsonerror.Bad("%s: must be from %d to %d", name, low, high)
	}
	*into = n
	return nil
}

func (b *body) bool(p *parser, bit uint16, name string, into *bool) error {
	err := b.once(bit, name)
	if err != nil || p.null() {
		return err
	}
	*into, err = p.bool(name)
	return err
}

// checkBody is the body of /v1/check.
type checkBody body

func (c *checkBody) field(p *parser, name []byte) error {
	b := (*body)(c)
	switch string(name) {
	case "key":
		return b.text(p, hasKey, "key", MaxText, &b.key)
	case "method":
		return b.text(p, hasMethod, "method", MaxText, &b.method)
	case "path":
		return b.text(p, hasPath, "path", MaxBody, &b.path)
	case "ip":
		return b.text(p, hasIP, "ip", MaxText, &b.ip)
	case "attributes":
		if err := b.once(hasAttributes, "attributes"); err != nil || p.null() {
			return err
		}
		return p.object("attributes", (*attributesBody)(b))
	case "cost":
		return b.int(p, hasCost, "cost", 0, MaxCost, &b.cost)
	case "receipt":
		return b.bool(p, hasReceipt, "receipt", &b.receipt)
	}
	return unknownField(name, checkFields)
}

// attributesBody is the attributes of a check.
type attributesBody body

func (a *attributesBody) field(p *parser, name []byte) error {
	b := (*body)(a)
	switch string(name) {
	case "user":
		return b.text(p, hasUser, "attributes.user", MaxText, &b.user)
	case "org":
		return b.text(p, hasOrg, "attributes.org", MaxText, &b.org)
	case "tier":
		return b.text(p, hasTier, "attributes.tier", MaxText, &b.tier)
	}
	switch {
	case len(name) == 0 || len(name) > MaxAttributeName:
		return jsonerror.Bad("attributes: a name must have from 1 to %d bytes", MaxAttributeName)
	case len(b.attributes) == MaxAttributes:
		return jsonerror.Bad("attributes: there may be at most %d beside user, org and tier", MaxAttributes)
	}
	for _, x := range b.attributes {
		if sameAttribute(b.texts[x.name.from:x.name.to], name) {
			return jsonerror.Bad("%s: is given twice", attributeLabel(name))
		}
	}
	var x attributeSpan
	x.name.from = len(b.texts)
	b.texts = append(b.texts, name...)
	x.name.to = len(b.texts)
	if c := p.peek(); c != '"' && c != 'n' {
		return p.mismatch(attributeLabel(name), "a string")
	}
	if err := b.anyText(p, "attributes", MaxBody, &x.value); err != nil {
		return err
	}
	if n := x.value.to - x.value.from; n > MaxText {
		return jsonerror.Bad("%s: must be at most %d bytes, got %d", attributeLabel(name), MaxText, n)
	}
	b.attributes = append(b.attributes, x)
	return nil
}

func attributeLabel(name []byte) string { return fmt.Sprintf("attributes[%q]", clip(string(name))) }

// sameAttribute reports whether two names answer one question of the rules:
// attr:region is region, and the names of headers have no case.
func sameAttribute[A, B string | []byte](a A, b B) bool {
	x, y := bareName(a), bareName(b)
	if len(x) != len(y) {
		return false
	}
	fold := isHeader(x) && isHeader(y)
	for i := range len(x) {
		if c, d := x[i], y[i]; c != d && !(fold && lower(c) == lower(d)) {
			return false
		}
	}
	return true
}

func bareName[T string | []byte](name T) T {
	if len(name) > 5 && string(name[:5]) == "attr:" {
		return name[5:]
	}
	return name
}

func isHeader[T string | []byte](name T) bool { return len(name) > 7 && string(name[:7]) == "header:" }

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// takeBody is the body of /v1/take.
type takeBody body

func (t *takeBody) field(p *parser, name []byte) error {
	b := (*body)(t)
	switch string(name) {
	case "key":
		return b.text(p, hasKey, "key", MaxText, &b.key)
	case "limit":
		return b.text(p, hasLimit, "limit", 64, &b.limit)
	case "burst":
		return b.int(p, hasBurst, "burst", 1, weir.MaxTokens, &b.burst)
	case "cost":
		return b.int(p, hasCost, "cost", 0, MaxCost, &b.cost)
	case "receipt":
		return b.bool(p, hasReceipt, "receipt", &b.receipt)
	case "algorithm":
		return b.word(p, hasAlgorithm, "algorithm", algorithms, func(i int) { b.algorithm = weir.Algorithm(i) })
	case "mode":
		return b.word(p, hasMode, "mode", modes, func(i int) { b.mode = mode(i + 1) })
	}
	return unknownField(name, takeFields)
}

// algorithms are the names of weir's, each at its number.
var algorithms = func() (names []string) {
	for a := weir.TokenBucket; a <= weir.SlidingCounter; a++ {
		names = append(names, a.String())
	}
	return names
}()

// mode is that of a leaky bucket.
type mode uint8

const (
	noMode mode = iota
	meter
	queue
)

var modes = []string{"meter", "queue"}

// word reads one of a few words.
func (b *body) word(p *parser, bit uint16, name string, words []string, set func(int)) error {
	var s span
	if err := b.text(p, bit, name, MaxText, &s); err != nil {
		return err
	}
	written := b.texts[s.from:s.to]
	if len(written) == 0 {
		return nil
	}
	for i, w := range words {
		if string(written) == w {
			set(i)
			return nil
		}
	}
	if meant := guess.Closest(string(written), words); meant != "" {
		return jsonerror.Bad("%s: there is no such one: did you mean %q?", name, meant)
	}
	return jsonerror.Bad("%s: must be one of %s", name, strings.Join(words, ", "))
}

// refundBody is the body of /v1/refund.
type refundBody body

func (r *refundBody) field(p *parser, name []byte) error {
	b := (*body)(r)
	if string(name) == "receipt" {
		return b.text(p, hasReceipt, "receipt", MaxBody, &b.receiptText)
	}
	return unknownField(name, refundFields)
}

// request makes a request of what was read of a check.
func (c *call) request() error {
	b, text := &c.body, string(c.body.texts)
	c.req = weir.Request{
		APIKey: b.key.of(text), KeyVerified: true,
		User: b.user.of(text), Org: b.org.of(text),
		Tier: b.tier.of(text), TierVerified: true,
		Method: b.method.of(text), Path: b.path.of(text),
		Cost: max(b.cost, 1), Peek: b.cost == 0, Receipt: b.receipt,
	}
	if ip := b.ip.of(text); ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return jsonerror.Bad("ip: must be an IPv4 or IPv6 address without a port, such as 203.0.113.7 or 2001:db8::1")
		}
		c.req.IP = addr.WithZone("")
	}
	c.attrs = c.attrs[:0]
	for _, x := range b.attributes {
		c.attrs = append(c.attrs, attribute{x.name.of(text), x.value.of(text)})
	}
	if len(c.attrs) > 0 {
		c.req.Attr = c.attr
	}
	return nil
}
