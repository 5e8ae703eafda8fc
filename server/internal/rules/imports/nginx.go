package imports

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// zone is a limit_req_zone: the key that it counts by, and its rate.
type zone struct {
	key   string
	limit weir.Limit
	at    *directive
}

// limitReq is a limit_req directive.
type limitReq struct {
	zone    string
	burst   int64
	nodelay bool
	delay   int64 // how many requests of the burst aren't delayed; -1 if there is no delay=
}

// scope has the limits of a block, which are the block's own or inherited.
type scope struct {
	limits []limitReq
	dryRun bool
}

// place is a location, or the rest of a server. Places may have different limits.
type place struct {
	modifier, path string // modifier and path of the location; for the rest of the server, the path is ""
	scope
	at *directive
}

// nginxConf imports a configuration.
type nginxConf struct {
	*document
	zones   map[string]zone
	vars    map[string]*directive // map and geo directives, by the variable that each sets
	used    map[string]int        // number of rules that use each zone
	seen    int                   // number of servers and locations
	limited bool                  // whether any rule has a limit from nginx
}

// Limits on how many items are compared with each other. They are far above what people write.
const (
	maxPlaces = 2000 // servers and locations
	maxLimits = 16   // limits in one server or location
)

// Nginx imports the limit_req directives of a configuration, including those in files that it includes. If text is nil,
// Nginx reads the text from the file.
func Nginx(path string, text []byte) (*Result, error) {
	r := &confReader{root: filepath.Dir(path)}
	conf, err := r.read(path, text, 0)
	if err != nil {
		return nil, err
	}
	c := &nginxConf{zones: map[string]zone{}, vars: map[string]*directive{}, used: map[string]int{}, document: newDocument(
		"Limits of nginx's limit_req, by weir import nginx. burst=B nodelay admits 1+B requests at once, as a bucket does that holds 1+B. "+
			"Without nodelay, nginx delays all requests of a burst but the first, so the rule is a queue: Weir's gateway and middleware let requests wait; auth_request can't.",
		"Weir ignores letter case and a slash at the end when it compares paths. IPv6 addresses count by their /64. "+
			"Weir refuses with 429, and nginx with limit_req_status, which is 503 by default.",
	)}
	for _, n := range r.lost {
		c.note(nil, n.Where, n.Differs, "%s", n.Text)
	}
	http := conf
	if i := slices.IndexFunc(conf, func(d directive) bool { return d.name == "http" }); i >= 0 {
		http = conf[i].block
	}
	c.declarations(http)
	if c.http(http); c.seen > maxPlaces {
		return nil, fmt.Errorf("%s: %w: at most %d servers and locations are imported", path, errTooLarge, maxPlaces)
	}
	if !c.limited { // all rules only keep wider rules from applying, but there are no wider rules
		return &Result{Notes: c.notes}, nil
	}
	return c.result()
}

// declarations records zones and variables in advance, because they may be declared after they are used.
func (c *nginxConf) declarations(block []directive) {
	for i := range block {
		d := &block[i]
		switch d.name {
		case "limit_req_zone":
			if name, z, ok := parseZone(d); ok {
				c.zones[name] = z
			} else {
				c.note(nil, d.where(), true, "limit_req_zone can't be read: it needs a key, zone=name:size and rate=10r/s")
			}
		case "map", "geo":
			if len(d.args) > 0 && d.block != nil {
				c.vars[d.args[len(d.args)-1]] = d
			}
		}
	}
}

var rate = regexp.MustCompile(`^rate=([0-9]{1,9})r/(s|m)$`)

func parseZone(d *directive) (name string, z zone, ok bool) {
	z = zone{key: d.arg(0), at: d}
	for _, a := range d.args[min(1, len(d.args)):] {
		if n, found := strings.CutPrefix(a, "zone="); found {
			name, _, _ = strings.Cut(n, ":")
		} else if m := rate.FindStringSubmatch(a); m != nil {
			n, _ := strconv.ParseInt(m[1], 10, 64)
			if z.limit = weir.PerSecond(n); m[2] == "m" {
				z.limit = weir.PerMinute(n)
			}
		}
	}
	return name, z, name != "" && z.limit.Count > 0
}

// inherit returns the scope of a block: the scope of the outer block, with the changes that the block itself makes.
func (c *nginxConf) inherit(outer scope, block []directive) scope {
	s := scope{dryRun: outer.dryRun}
	for i := range block {
		d := &block[i]
		switch d.name {
		case "limit_req":
			if l, ok := parseLimitReq(d); ok && len(s.limits) < maxLimits {
				s.limits = append(s.limits, l)
			} else {
				c.note(nil, d.where(), true, "limit_req can't be read: it needs zone=name, burst and delay are numbers, and a block has at most %d of them", maxLimits)
			}
		case "limit_req_dry_run":
			s.dryRun = d.arg(0) == "on"
		case "limit_conn", "limit_conn_zone":
			c.note(nil, d.where(), true, "%s limits connections, or requests in flight: write a rule with algorithm: concurrency", d.name)
		}
	}
	if len(s.limits) == 0 {
		s.limits = outer.limits
	}
	return s
}

func parseLimitReq(d *directive) (l limitReq, ok bool) {
	l.delay, ok = -1, true
	for _, a := range d.args {
		name, value, _ := strings.Cut(a, "=")
		n, err := strconv.ParseInt(value, 10, 32)
		switch {
		case name == "zone":
			l.zone = value
		case name == "burst" && err == nil && n >= 0:
			l.burst = n
		case name == "delay" && err == nil && n >= 0:
			l.delay = n
		case a == "nodelay":
			l.nodelay = true
		default:
			ok = false
		}
	}
	return l, ok && l.zone != ""
}

// http adds the rules of all servers in an http block.
func (c *nginxConf) http(block []directive) {
	outer := c.inherit(scope{}, block)
	var servers []*directive
	for i := range block {
		if block[i].name == "server" && block[i].block != nil {
			servers = append(servers, &block[i])
		}
	}
	if len(servers) == 0 {
		c.server("", []place{{scope: outer}})
	}
	type done struct {
		at     *directive
		places []place
		rules  []*entry
	}
	var all []done
	for i, s := range servers {
		if c.seen++; c.seen > maxPlaces {
			return
		}
		places := c.places(c.inherit(outer, s.block), s.block, s)
		same := func(a, b place) bool { return a.modifier == b.modifier && a.path == b.path && !a.differs(b) }
		if slices.ContainsFunc(all, func(o done) bool { return slices.EqualFunc(o.places, places, same) }) {
			continue // an equal server has added these rules
		}
		layer := "nginx"
		if len(servers) > 1 {
			layer += "-" + strconv.Itoa(i+1)
		}
		all = append(all, done{s, places, c.server(layer, places)})
	}
	if len(all) > 1 { // if servers have different rules
		for _, d := range all {
			for _, r := range d.rules {
				c.note(r, d.at.where(), true, "nginx has this for one of %d servers: no rule is for a host, so it is for all of them", len(servers))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.zones)) {
		switch at := c.zones[name].at.where(); {
		case c.used[name] == 0:
			c.note(nil, at, false, "the zone %s is used nowhere", clip(name))
		case c.used[name] > 1:
			c.note(nil, at, true, "the zone %s is used in several places, which share their counters in nginx: here each rule has its own", clip(name))
		}
	}
}

// places returns the parts of a server: first its locations, in the order in which nginx prefers them, and then the
// rest of the server.
func (c *nginxConf) places(s scope, block []directive, at *directive) []place {
	list := c.locations(s, block)
	rank := func(p place) int {
		return slices.Index([]string{"=", "^~", "~", ""}, strings.TrimSuffix(p.modifier, "*"))
	}
	slices.SortStableFunc(list, func(a, b place) int {
		if r := cmp.Compare(rank(a), rank(b)); r != 0 || rank(a) == 2 { // regular expressions stay in the order of the file
			return r
		}
		return cmp.Compare(len(b.path), len(a.path))
	})
	for _, p := range list {
		for _, q := range list {
			if p.modifier == "^~" && q.modifier == "" && len(q.path) > len(p.path) && strings.HasPrefix(q.path, p.path) {
				c.note(nil, q.at.where(), true, "nginx prefers this longer location to the ^~ one on line %d, and then an expression to both: the rules prefer ^~", p.at.line)
			}
		}
	}
	return append(list, place{scope: s, at: at})
}

// locations returns the locations of a block, including nested ones.
func (c *nginxConf) locations(outer scope, block []directive) (list []place) {
	for i := range block {
		d := &block[i]
		switch {
		case d.block == nil:
			continue
		case d.name == "if":
			list = append(list, c.locations(outer, d.block)...)
			continue
		case d.name != "location":
			continue
		}
		if c.seen++; c.seen > maxPlaces {
			return nil
		}
		s := c.inherit(outer, d.block)
		modifier, path := "", d.arg(0)
		if len(d.args) > 1 {
			modifier, path = d.args[0], d.args[1]
		} else if rest := strings.TrimLeft(path, "=^~*"); strings.HasPrefix(rest, "/") && rest != path { // for example location =/x
			modifier, path = path[:len(path)-len(rest)], rest
		}
		if !strings.HasPrefix(path, "@") && slices.Contains([]string{"", "=", "^~", "~", "~*"}, modifier) {
			list = append(list, place{modifier: modifier, path: path, scope: s, at: d})
		}
		list = append(list, c.locations(s, d.block)...)
	}
	return list
}

// server adds the rules of a server. nginx uses one place for each request, so the rules of all places are alternatives
// in the same layer. If places have several limits, there are several layers.
func (c *nginxConf) server(layer string, places []place) (rules []*entry) {
	places = needed(places)
	slots := 0
	for _, p := range places {
		slots = max(slots, len(p.limits))
	}
	locations, rest := places[:len(places)-1], places[len(places)-1]
	switch {
	case slots == 0:
		return nil
	case len(locations) == 0:
		layer = ""
	case len(rest.limits) == 0 && !slices.ContainsFunc(locations, locations[0].differs):
		return c.together(locations)
	}
	mixed := slices.ContainsFunc(places, func(p place) bool { return p.path != "" && endpointOf(p) == "" })
	for slot := range slots {
		for _, p := range places {
			if slot >= len(p.limits) && (p.path == "" || !slices.ContainsFunc(places, func(o place) bool { return slot < len(o.limits) && o.around(p) })) {
				continue
			}
			name := layer
			if name != "" && slot > 0 {
				name += "-limit-" + strconv.Itoa(slot+1)
			}
			if r := c.rule(p, slot, matchOf(p, mixed), name); r != nil {
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// needed leaves out locations that have the same limits as the rest of the server. It keeps such a location if another
// location would otherwise match the location's requests.
func needed(places []place) (list []place) {
	rest := places[len(places)-1]
	for i, p := range places {
		if p.path == "" || p.differs(rest) || slices.ContainsFunc(places[i+1:], func(o place) bool { return o.differs(p) && o.around(p) }) {
			list = append(list, p)
		}
	}
	return list
}

func (p place) differs(o place) bool {
	return p.dryRun != o.dryRun || !slices.Equal(p.limits, o.limits)
}

// around reports whether a request that place o matches may also match p.
func (p place) around(o place) bool {
	return p.path == "" || strings.HasPrefix(p.modifier, "~") || strings.HasPrefix(o.modifier, "~") || p.modifier != "=" && strings.HasPrefix(o.path, p.path)
}

// together adds one rule for places that have the same limits, so that the places share counters.
func (c *nginxConf) together(places []place) (rules []*entry) {
	match := matchOf(places[0], false)
	if len(places) > 1 {
		parts := make([]string, len(places))
		for i, p := range places {
			parts[i] = expression(p)
		}
		match = weir.Match{EndpointRegex: strings.Join(parts, "|")}
		if slices.ContainsFunc(places, func(p place) bool { return p.path == "/" && (p.modifier == "" || p.modifier == "^~") }) {
			match = weir.Match{}
		}
	}
	for slot := range places[0].limits {
		if r := c.rule(places[0], slot, match, ""); r != nil {
			rules = append(rules, r)
		}
	}
	return rules
}

var safePath = regexp.MustCompile(`^/[A-Za-z0-9._~/-]*$`)

// endpointOf returns an endpoint that matches the same paths as a location, or "" if there is no such endpoint.
func endpointOf(p place) string {
	switch {
	case !safePath.MatchString(p.path) || strings.Contains(p.path, "//"):
	case p.modifier == "=" && (p.path == "/" || !strings.HasSuffix(p.path, "/")):
		if p.path == "/" {
			return "/{$}"
		}
		return p.path
	case (p.modifier == "" || p.modifier == "^~") && strings.HasSuffix(p.path, "/"):
		return p.path
	}
	return ""
}

// expression returns a regular expression that matches the same paths as a location.
func expression(p place) string {
	switch p.modifier {
	case "~", "~*":
		return p.path
	case "=":
		return "^" + regexp.QuoteMeta(p.path) + "$"
	}
	return "^" + regexp.QuoteMeta(p.path)
}

// matchOf returns the condition for a place. In a layer, endpoints take precedence over regular expressions, which are
// tried in the order of the file. If mixed says that a server has locations of both kinds, all of them become regular
// expressions.
func matchOf(p place, mixed bool) weir.Match {
	switch e := endpointOf(p); {
	case p.path == "" || p.path == "/" && p.modifier != "=" && !strings.HasPrefix(p.modifier, "~"):
		return weir.Match{}
	case e != "" && !mixed:
		return weir.Match{Endpoint: e}
	}
	return weir.Match{EndpointRegex: expression(p)}
}

// rule adds the rule for one limit of a place. If the place has fewer limits, the rule only keeps wider rules from
// applying.
func (c *nginxConf) rule(p place, slot int, match weir.Match, layer string) *entry {
	where := "nginx"
	if p.at != nil {
		where = p.at.where()
	}
	fields, ok := matchField(match)
	if !ok {
		c.note(nil, where, true, "no rule can have this location's expression: it is left out")
		return nil
	}
	if layer != "" {
		fields = append(fields, "layer: "+layer)
	}
	if slot >= len(p.limits) {
		r := c.add("unlimited"+p.path, append(fields, "by: []", "limit: "+unlimited)...)
		c.note(r, where, false, "nginx has no such limit here: this rule keeps wider ones from applying")
		return r
	}
	l := p.limits[slot]
	z, known := c.zones[l.zone]
	if !known {
		c.note(nil, where, true, "limit_req names the zone %s, and there is no limit_req_zone for it: it is left out", clip(l.zone))
		return nil
	}
	c.used[l.zone]++
	by, notes, wrong := c.key(z.key)
	if wrong != "" {
		c.note(nil, where, true, "the zone %s %s: it is left out", clip(l.zone), wrong)
		return nil
	}
	fields = append(fields, byFields(by)...)
	if l.burst > 0 && !l.nodelay && l.delay < 0 {
		second := int64(z.limit.Window / time.Second)
		longest := (l.burst*second + z.limit.Count - 1) / z.limit.Count // how many seconds the last request of a burst waits, rounded up
		fields = append(fields, "algorithm: leaky_bucket", "mode: queue", fmt.Sprintf("max_delay: %ds", longest))
	}
	fields = append(fields, "limit: "+z.limit.String(), fmt.Sprintf("burst: %d", l.burst+1))
	if p.dryRun {
		fields = append(fields, "shadow: true")
	}
	name := l.zone
	if p.path != "" {
		name += "-" + p.path
	}
	r := c.add(name, fields...)
	c.limited = true
	for _, n := range notes {
		c.note(r, z.at.where(), n.Differs, "%s", n.Text)
	}
	if l.delay >= 0 && !l.nodelay {
		c.note(r, where, true, "delay=%d: nginx delays the requests of a burst beyond the first %d; this rule admits as many, and delays none", l.delay, l.delay)
	}
	return r
}
