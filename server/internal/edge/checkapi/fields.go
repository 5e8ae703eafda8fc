package checkapi

import (
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"strings"
)

// field is a field of a body, or of an object in it, whose name is in.
type field struct {
	name string
	read func(c *workspace, in, name string) error
}

// The fields of each body.
var (
	key     = textField("key", MaxText, func(b *body) *string { return &b.req.APIKey })
	cost    = field{"cost", func(c *workspace, _, name string) error { return c.wholeOf(name, 0, MaxCost, &c.cost) }}
	amounts = field{"amounts", func(c *workspace, _, _ string) error { return c.amountsOf() }}
	wanted  = field{"receipt", func(c *workspace, _, name string) error { return c.boolOf(name, &c.req.Receipt) }}
	receipt = textField("receipt", MaxBody, func(b *body) *string { return &b.receipt })

	checkFields = []field{
		key,
		textField("method", MaxText, func(b *body) *string { return &b.req.Method }),
		textField("path", MaxBody, func(b *body) *string { return &b.req.Path }),
		textField("ip", MaxText, func(b *body) *string { return &b.ip }),
		{"attributes", func(c *workspace, _, _ string) error { return c.attributesOf() }},
		cost, wanted, amounts,
		{"reserve", func(c *workspace, _, _ string) error { return c.reserveOf() }},
		{"id", func(c *workspace, _, _ string) error { return c.idOf() }},
	}
	subjectFields = []field{ // of attributes; other names are allowed
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
	receiptFields = []field{receipt} // of a refund and a release
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

// attribute is an attribute other than user, org and tier.
type attribute struct{ name, value string }

type attributes []attribute

// of returns an attribute's value, by any of the names that it has in rules.
func (as attributes) of(name string) string {
	for _, a := range as {
		if sameAttribute(a.name, name) {
			return a.value
		}
	}
	return ""
}

func (c *workspace) attributesOf() error {
	if c.json.PeekKind() == 'n' {
		return c.json.SkipValue()
	}
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

// sameAttribute reports whether two names mean the same to rules: attr:region is region, and header
// names ignore case.
func sameAttribute(a, b string) bool {
	a, b = strings.TrimPrefix(a, "attr:"), strings.TrimPrefix(b, "attr:")
	x, isHeader := strings.CutPrefix(a, "header:")
	y, alsoHeader := strings.CutPrefix(b, "header:")
	return a == b || isHeader && alsoHeader && strings.EqualFold(x, y)
}
