package checkapi

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/shown"
)

// field is a field of the body or, if in isn't "", of the object with that name in the body.
type field struct {
	name string
	read func(c *workspace, in, name string) error
}

// The fields of all bodies.
var (
	key     = textField("key", MaxText, func(b *body) *string { return &b.req.APIKey })
	cost    = field{"cost", func(c *workspace, _, name string) error { return c.wholeOf(name, 0, MaxCost, &c.cost) }}
	amounts = field{"amounts", orNull((*workspace).amountsOf)}
	wanted  = field{"receipt", func(c *workspace, _, name string) error { return c.boolOf(name, &c.req.Receipt) }}
	receipt = textField("receipt", MaxBody, func(b *body) *string { return &b.receipt })

	checkFields = []field{
		key,
		textField("method", MaxText, func(b *body) *string { return &b.req.Method }),
		textField("path", MaxBody, func(b *body) *string { return &b.req.Path }),
		textField("ip", MaxText, func(b *body) *string { return &b.ip }),
		{"attributes", orNull((*workspace).attributesOf)},
		cost, wanted, amounts,
		{"reserve", orNull((*workspace).reserveOf)},
		{"id", orNull((*workspace).idOf)},
	}
	subjectFields = []field{ // fields of attributes, which may have other fields as well
		textField("user", MaxText, func(b *body) *string { return &b.req.User }),
		textField("org", MaxText, func(b *body) *string { return &b.req.Org }),
		textField("tier", MaxText, func(b *body) *string { return &b.req.Tier }),
	}
	takeFields = []field{
		key,
		textField("limit", 64, func(b *body) *string { return &b.limit }),
		{"burst", func(c *workspace, _, name string) error { return c.wholeOf(name, 1, counter.MaxTokens, &c.burst) }},
		cost, wanted,
		textField("algorithm", MaxText, func(b *body) *string { return &b.algorithm }),
		textField("mode", MaxText, func(b *body) *string { return &b.mode }),
	}
	batchFields   = []field{listField("checks", (*workspace).readItem)}
	receiptFields = []field{receipt} // for refunds and releases
	renewFields   = []field{receipt, listField("receipts", (*workspace).receiptOf)}
	settleFields  = []field{
		receipt, amounts,
		{"status", func(c *workspace, _, name string) error { return c.wholeOf(name, 100, 599, &c.status) }},
		{"unknown", func(c *workspace, _, name string) error { return c.boolOf(name, &c.unknown) }},
	}
)

func textField(name string, most int, into func(*body) *string) field {
	return field{name, func(c *workspace, in, name string) error { return c.textOf(in, name, most, into(&c.body)) }}
}

// orNull returns a function that calls read to read a field. If the value is null, the function skips it, and the field
// stays unset.
func orNull(read func(*workspace) error) func(c *workspace, in, name string) error {
	return func(c *workspace, _, _ string) error {
		if c.json.PeekKind() == 'n' {
			return c.json.SkipValue()
		}
		return read(c)
	}
}

func listField(name string, each func(*workspace) error) field {
	return field{name, func(c *workspace, _, name string) error {
		err := c.elements(name, '[', func() error { return each(c) })
		c.many = true
		return err
	}}
}

func names(fields []field) (list []string) {
	for _, f := range fields {
		list = append(list, f.name)
	}
	return list
}

// attribute is an attribute of a check. User, org and tier have fields of their own.
type attribute struct{ name, value string }

type attributes []attribute

// of returns the value of an attribute. name may be any of the names that rules have for it.
func (as attributes) of(name string) string {
	for _, a := range as {
		if sameAttribute(a.name, name) {
			return a.value
		}
	}
	return ""
}

func (c *workspace) attributesOf() error {
	return c.object("attributes", subjectFields, c.attributeField)
}

func (c *workspace) attributeField(name string) error {
	mine := c.attrs[c.first:]
	switch {
	case name == "" || len(name) > MaxAttributeName:
		return jsonerror.Bad("attributes: a name must have from 1 to %d bytes", MaxAttributeName)
	case len(mine) == MaxAttributes:
		return jsonerror.Bad("attributes: there may be at most %d beside user, org and tier", MaxAttributes)
	}
	for i := range mine {
		if sameAttribute(mine[i].name, name) {
			return jsonerror.Bad("%s: is given twice", label("attributes", name))
		}
	}
	x := attribute{name: name}
	if err := c.textOf("attributes", name, MaxText, &x.value); err != nil {
		return err
	}
	c.attrs = append(c.attrs, x)
	return nil
}

// sameAttribute reports whether two names mean the same attribute in rules. For example, attr:region is region, and
// names of headers ignore case.
func sameAttribute(a, b string) bool {
	a, b = strings.TrimPrefix(a, "attr:"), strings.TrimPrefix(b, "attr:")
	x, isHeader := strings.CutPrefix(a, "header:")
	y, alsoHeader := strings.CutPrefix(b, "header:")
	return a == b || isHeader && alsoHeader && strings.EqualFold(x, y)
}

func (c *workspace) amountsOf() error {
	c.amounts = true
	return c.object("amounts", nil, c.amountField)
}

func (c *workspace) amountField(name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return jsonerror.Bad("amounts: a name must have from 1 to 64 of a-z, 0-9 and _, such as tokens")
	}
	field := "amounts." + shown.Name(name)
	if _, twice := c.req.Amounts[name]; twice {
		return jsonerror.Bad("%s: is given twice", field)
	}
	if len(c.req.Amounts) == MaxAmounts {
		return jsonerror.Bad("amounts: there may be at most %d", MaxAmounts)
	}
	value, err := c.value()
	if err != nil || jsontext.Value(value).Kind() != '0' {
		return mismatch(field, "a number", value, err)
	}
	var a counter.Amount
	if a.UnmarshalJSON([]byte(value)) != nil {
		return jsonerror.Bad("%s: must be from 0 to %d", field, int64(MaxCost))
	}
	if c.req.Amounts == nil {
		c.req.Amounts = map[string]counter.Amount{}
	}
	c.req.Amounts[name] = a
	return nil
}

func (c *workspace) reserveOf() error {
	value, err := c.value()
	kind := jsontext.Value(value).Kind()
	if err == nil && kind == '"' {
		value, err = c.text(value)
	}
	if err != nil || kind != '"' && kind != '0' {
		return mismatch("reserve", "a time", value, err)
	}
	var ok bool
	if c.req.Reserve, ok = parseReserve(value, kind == '0'); !ok {
		return jsonerror.Bad(`reserve: must be a time from 1ms to 24h such as "2m", or that many seconds as a number`)
	}
	return nil
}

func parseReserve(text string, seconds bool) (d time.Duration, ok bool) {
	var err error
	if seconds {
		var s counter.Amount // the sum, in millionths
		err = s.UnmarshalJSON([]byte(text))
		d = time.Duration(s) * time.Microsecond
	} else {
		d, err = time.ParseDuration(text)
	}
	return d, err == nil && d >= time.Millisecond && d <= MaxReserve
}

// idOf reads the id of a check. An empty id is an error, because the caller expects that a retry is charged only once.
func (c *workspace) idOf() error {
	if err := c.textOf("", "id", MaxBody, &c.id); err != nil {
		return err
	}
	if n := len(c.id); n < 1 || n > MaxID {
		return jsonerror.Bad("id: must have from 1 to %d bytes, got %d", MaxID, n)
	}
	return nil
}

// repeat returns a hash by which all nodes recognize a repeated check. It covers the id and everything that determines
// who is charged, and how much. So a different request with the same id is charged separately.
func (c *workspace) repeat() (name counter.Once) {
	b := append(c.scratch[:0], "weir check 1\x00"...)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	for _, s := range []string{c.id, c.req.APIKey, c.req.Method, c.req.Path, c.req.User, c.req.Org, c.req.Tier} {
		text(s)
	}
	ip := [17]byte{}
	if c.req.IP.IsValid() {
		ip = [17]byte{1}
		all := c.req.IP.As16()
		copy(ip[1:], all[:])
	}
	b = append(b, ip[:]...)
	number(c.req.Cost)
	number(int64(c.req.Reserve))
	number(int64(len(c.req.Amounts)))
	for _, amount := range slices.Sorted(maps.Keys(c.req.Amounts)) {
		text(amount)
		number(int64(c.req.Amounts[amount]))
	}
	attrs := map[string]string{}
	for _, a := range c.attrs[c.first:] {
		if a.value != "" { // to rules, an empty attribute is a missing one
			attrs[plainName(a.name)] = a.value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		text(name)
		text(attrs[name])
	}
	c.scratch = b
	sum := sha256.Sum256(b)
	copy(name[:], sum[:])
	return name
}

// plainName returns the same name for all names that mean the same attribute: see sameAttribute.
func plainName(name string) string {
	name = strings.TrimPrefix(name, "attr:")
	if strings.HasPrefix(name, "header:") {
		return strings.ToLower(name)
	}
	return name
}
