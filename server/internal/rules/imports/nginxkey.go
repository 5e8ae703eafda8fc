package imports

import (
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
)

var variable = regexp.MustCompile(`\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))`)

// maxVariables is the maximum number of variables in a zone's key.
const maxVariables = 16

// variables maps nginx's variables to the names that rules use for them. differs says how the two differ.
var variables = map[string]struct{ by, differs string }{
	"binary_remote_addr":  {by: "ip"},
	"remote_addr":         {by: "ip"},
	"realip_remote_addr":  {"ip", "$realip_remote_addr is the peer's address in nginx, and the client's in the rule"},
	"proxy_protocol_addr": {"ip", "$proxy_protocol_addr becomes the client's address, according to --trusted-proxies"},
	"host":                {by: "header:Host"},
	"http_host":           {by: "header:Host"},
	"server_name":         {"header:Host", "$server_name is the server's name in nginx, and what the client sends as Host in the rule"},
	"request_method":      {by: "method"},
	"remote_user":         {"user", "$remote_user becomes the user of a verified token"},
	"uri":                 {"path:8", wholePath},
	"document_uri":        {"path:8", wholePath},
	"request_uri":         {"path:8", wholePath},
}

const wholePath = "the URI is the whole path in nginx, and its first 8 segments, without the query, in the rule"

// key converts the key of a zone to the dimensions that a rule counts by. If that is impossible, wrong says why.
func (c *nginxConf) key(key string) (by []string, notes []Note, wrong string) {
	by = []string{}
	names := variable.FindAllStringSubmatch(key, maxVariables+1)
	if len(names) > maxVariables {
		return nil, nil, fmt.Sprintf("counts by more than %d variables, which no rule does", maxVariables)
	}
	for _, m := range names {
		dims, more, wrong := c.variable(m[1] + m[2])
		if wrong != "" {
			return nil, nil, wrong
		}
		notes = append(notes, more...)
		for _, d := range dims {
			if !slices.Contains(by, d) {
				by = append(by, d)
			}
		}
	}
	return by, notes, ""
}

// variable converts one variable of a key.
func (c *nginxConf) variable(name string) (by []string, notes []Note, wrong string) {
	header, isHeader := strings.CutPrefix(name, "http_")
	claim, isClaim := strings.CutPrefix(name, "jwt_claim_")
	known, isKnown := variables[name]
	switch set := c.vars["$"+name]; {
	case isKnown && known.differs != "":
		return []string{known.by}, []Note{{Text: known.differs, Differs: true}}, ""
	case isKnown:
		return []string{known.by}, nil, ""
	case isHeader && header != "":
		return []string{"header:" + textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(header, "_", "-"))}, nil, ""
	case isClaim && claim != "":
		return []string{"claim:" + claim}, nil, ""
	case set != nil:
		return c.mapped(set)
	}
	return nil, nil, fmt.Sprintf("counts by $%s, which no rule can", clip(name))
}

// mapped converts a variable that a map or geo sets. If only one of its values isn't empty, it converts that value.
// Requests with an empty key aren't counted; this is how people exempt their own networks.
func (c *nginxConf) mapped(d *directive) (by []string, notes []Note, wrong string) {
	name := d.args[len(d.args)-1]
	value, several := "", false
	for _, e := range d.block {
		v := e.arg(0)
		if v != "" && value != "" && v != value {
			several = true
		}
		if v != "" {
			value = v
		}
	}
	if d.name == "map" && several {
		return nil, nil, fmt.Sprintf(`counts by %s, for which a map has several values (a header, or else the address, is by: ["header:NAME"] in a rule)`, clip(name))
	}
	if d.name == "geo" || !variable.MatchString(value) || strings.Contains(value, name) {
		return nil, nil, fmt.Sprintf("counts by %s, which a %s sets: no rule can", clip(name), d.name)
	}
	// Follow only one step. That is enough in practice, and can't loop.
	flat := &nginxConf{vars: map[string]*directive{}}
	if by, notes, wrong = flat.key(value); wrong != "" {
		return nil, nil, wrong
	}
	text := fmt.Sprintf("%s leaves some requests uncounted: list their networks, or their keys, under allow", clip(name))
	if source := c.vars[d.arg(0)]; source != nil && source.name == "geo" {
		if nets := exempt(d, source); len(nets) > 0 {
			text = fmt.Sprintf("%s leaves these networks uncounted: allow: [%s]", clip(name), strings.Join(nets, ", "))
		}
	}
	return by, append(notes, Note{Text: text, Differs: true}), ""
}

var network = regexp.MustCompile(`^[0-9a-fA-F.:]+(/[0-9]+)?$`)

// exempt returns the networks of a geo for which a map yields an empty value.
func exempt(m, geo *directive) (nets []string) {
	empty := map[string]bool{}
	for _, e := range m.block {
		empty[e.name] = e.arg(0) == ""
	}
	for _, e := range geo.block {
		if network.MatchString(e.name) && empty[e.arg(0)] && len(nets) < 50 {
			nets = append(nets, e.name)
		}
	}
	return nets
}
