package top

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Errors for a fingerprint that doesn't identify exactly one client.
var (
	ErrUnknownClient   = errors.New("no node remembers a client with this fingerprint: paste the key")
	ErrUnaskedClient   = errors.New("this node doesn't remember a client with this fingerprint, and not all others could be asked: paste the key")
	ErrAmbiguousClient = errors.New("several clients have this fingerprint: paste the key")
	ErrLongClient      = errors.New("the key is too long to be kept as a whole: paste the key")
	ErrSealedClient    = errors.New("another node remembers this client, and tells its key only to nodes with the same admin tokens, if it isn't too long: paste the key, or ask that node")
	ErrFingerprint     = errors.New("a fingerprint is 8 hexadecimal digits, such as 1a2b3c4d")
)

// Client describes a client in all rules that count it. The client is given as an identity or, if who is empty, as a
// fingerprint.
func (c *Cluster) Client(ctx context.Context, who Identity, print string) (HourOfClient, Identity, error) {
	if who.Kind != "" {
		c.top.Learn() // first, because learning the secret changes fingerprints
		print = fingerprint(c.top.key.Load().hash(who))
	}
	print = strings.ToLower(print)
	if _, err := parsePrint(print); err != nil {
		return HourOfClient{}, who, err
	}
	all, span, err := c.askHour(ctx, ofClient, print)
	if err != nil {
		return HourOfClient{}, who, err
	}
	c.merging.Lock()
	defer c.merging.Unlock()
	out := HourOfClient{Span: span, Shown: Shown{who.Shown(), print, who.Kind}, Rules: []HourClientIn{}}
	if who.Kind == "" {
		name, err := nameOf(all)
		if err == ErrUnknownClient && span.Partial != "" {
			err = ErrUnaskedClient
		}
		if err != nil {
			return out, who, err
		}
		who = Identity{name.Kind, name.value}
		out.Client, out.Kind = name.Client, name.Kind
	}
	var requests, kept uint64 // number of requests of all clients in these rules
	for id, parts := range byRule(all) {
		var in merged
		var rule sum
		ruleKept := uint64(0)
		for _, r := range parts {
			rule.add(r.Sum)
			ruleKept += r.Kept
			for i := range r.Rows {
				in.add(&r.Rows[i])
			}
		}
		if in.pasts != nil {
			out.Rules = append(out.Rules, HourClientIn{id, span.use(&in)})
			requests, kept = requests+rule.Requests, kept+ruleKept
		}
	}
	slices.SortFunc(out.Rules, func(a, b HourClientIn) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Rule, b.Rule))
	})
	out.Coverage = coverage(kept, requests, span.sampled())
	return out, who, nil
}

// nameOf returns the client that has the fingerprint. There must be exactly one.
func nameOf(all []told) (toldName, error) {
	var names []toldName
	for _, t := range all {
		names = append(names, t.Names...)
	}
	switch names = distinct(names); len(names) {
	case 0:
		return toldName{}, ErrUnknownClient
	case 1:
		return names[0], nil
	}
	return names[0], ErrAmbiguousClient
}

// Resolve returns the identity of the client with a fingerprint, if a node knows the whole identity. It asks the other
// nodes only if this node doesn't know the client. So an operator who blocks a client usually doesn't have to wait.
func (c *Cluster) Resolve(ctx context.Context, print string) (Identity, error) {
	if _, err := parsePrint(print); err != nil {
		return Identity{}, err
	}
	q := question{ofClient, strings.ToLower(print)}
	name, err := nameOf([]told{c.top.tell(q, c.node, alone)})
	unknown := ErrLongClient
	if err == ErrUnknownClient && c.redis != nil {
		others := c.askOthers(ctx, q)
		name, err = nameOf(others.all)
		unknown = ErrSealedClient
		switch {
		case others.err == ErrBusy:
			err = ErrBusy
		case err == ErrUnknownClient && (others.err != nil || len(others.missing) > 0):
			err = ErrUnaskedClient
		}
	}
	if err == nil && name.value == "" {
		err = unknown
	}
	return Identity{name.Kind, name.value}, err
}

func parsePrint(print string) (uint32, error) {
	n, err := strconv.ParseUint(print, 16, 32)
	if err != nil || len(print) != 8 {
		return 0, ErrFingerprint
	}
	return uint32(n), nil
}
