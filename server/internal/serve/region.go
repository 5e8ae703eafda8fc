package serve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/region"
	"github.com/weirhq/weir/server/internal/admin"
)

// Region describes the node's region, and how nodes of different regions reach each other.
type Region struct {
	Name       string              `yaml:"name"`        // name of the node's region; "" means that there are no regions
	Home       string              `yaml:"home"`        // the region that counts global limits whose rules don't name a region; if "", each region counts them for itself
	Listen     string              `yaml:"listen"`      // the address on which this node accepts connections from other regions; "" means none
	SecretFile string              `yaml:"secret_file"` // path of the file with the secret that all regions share
	Peers      map[string][]string `yaml:"peers"`       // the addresses of nodes in the other regions, by region
}

var regionName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// linked reports whether the settings connect the node to other regions.
func (r *Region) linked() bool { return r.Listen != "" || len(r.Peers) > 0 }

func (r *Region) validate() error {
	if r.Name == "" {
		return when(r.linked() || r.Home != "" || r.SecretFile != "",
			"--region: is missing: say which region this node is in, as regions.name or --region")
	}
	regions := slices.Sorted(maps.Keys(r.Peers))
	errs := []error{checkRegion("regions.name or --region", r.Name), in("regions.listen", checkAddress(r.Listen))}
	for _, name := range regions {
		errs = append(errs, r.validatePeer(name))
	}
	regions = append(regions, r.Name)
	return cmp.Or(append(errs,
		when(r.Home != "" && !slices.Contains(regions, r.Home),
			"regions.home: %q is neither this node's region nor one of regions.peers: %s", r.Home, strings.Join(regions, ", ")),
		when(r.linked() && r.SecretFile == "",
			"regions.secret_file: is missing: regions need a secret that all have; make one with openssl rand -hex 32"),
		when(len(r.Peers) > 0 && r.Home == "",
			"regions.home: is missing: name the region that counts global limits; give all regions the same"),
	)...)
}

func checkRegion(setting, name string) error {
	return when(!regionName.MatchString(name),
		"%s: must be a name of up to 32 lower-case letters, digits and -, such as eu-west, got %q", setting, name)
}

func (r *Region) validatePeer(name string) error {
	errs := []error{
		checkRegion("regions.peers", name),
		when(name == r.Name, "regions.peers: %s is this node's own region: leave it out", name),
		when(len(r.Peers[name]) == 0, "regions.peers.%s: needs an address such as weir-%s.example:8084", name, name),
	}
	for _, address := range r.Peers[name] {
		host, port, err := net.SplitHostPort(address)
		errs = append(errs, when(err != nil || host == "" || port == "",
			"regions.peers.%s: must be host:port, such as weir-%s.example:8084, got %q", name, name, address))
	}
	return cmp.Or(errs...)
}

func (n *node) openLink() error {
	r := &n.config.Region
	n.self.Region = r.Name
	if !r.linked() {
		return nil
	}
	secret, err := region.ReadSecret(r.SecretFile)
	if err != nil {
		return fmt.Errorf("regions.secret_file: %w", err)
	}
	n.link, err = region.NewLink(region.Options{Name: r.Name, Home: r.Home, Secret: secret, Peers: r.Peers, Timeout: n.config.RegionTimeout, MaxWaiting: max(1, 3*n.config.MaxInFlight/4), Logger: n.log})
	if err != nil {
		return fmt.Errorf("regions: %w", err)
	}
	if r.Listen == "" {
		n.log.Warn("other regions can't reach this node: set regions.listen", "region", r.Name)
	}
	n.regionTLS, err = secret.TLS()
	return err
}

func (n *node) regions() admin.Regions {
	out := admin.Regions{Name: n.config.Region.Name, Home: cmp.Or(n.config.Region.Home, n.config.Region.Name), Peers: []region.Status{}}
	if n.link != nil {
		here := n.link.Here()
		out.Home, out.Epoch, out.State, out.Grace = here.Home, here.Epoch, here.State, here.Grace
		out.Peers = append(out.Peers, n.link.Peers()...)
	}
	return out
}

func (n *node) regroup(ctx context.Context, c admin.RegionChange) error {
	switch {
	case n.link == nil:
		return fmt.Errorf("%w: this node knows no other regions: see regions.peers", region.ErrRefused)
	case c.Do == "move":
		return n.link.Move(ctx, c.Region, c.To, c.Force)
	}
	states := map[string]string{"drain": region.Drained, "forget": region.Forgotten, "restore": ""}
	return n.link.SetState(ctx, c.Region, states[c.Do], c.Force)
}

// The messages of scopes begin with one of these texts.
const (
	alone   = "This node has no other regions (regions.peers), and counts here what should be counted for all: "
	unknown = "The home isn't a region that this node knows (regions.peers), so what on_partition says decides: "
	unheard = "Not heard: region "
	refuse  = "Requests are refused with 503 by "
	floor   = "This region has no more than its floor of "
	whole   = "This region counts the whole limit by itself for "
)

// scopes returns a text about global rules that aren't counted at their home. If there are none, it returns "".
func (n *node) scopes() string {
	names := map[string][]string{}
	doc := n.limiter.Rules().Rules()
	for i := range doc.Rules {
		r := &doc.Rules[i]
		switch {
		case !r.Global || n.link != nil && n.link.Reaches(r):
			continue
		case n.link == nil:
			names[alone] = append(names[alone], r.ID)
			continue
		}
		home := n.link.HomeOf(r)
		if !n.link.Knows(home) {
			names[unknown] = append(names[unknown], r.ID+" ("+home+")")
			continue
		}
		if !slices.Contains(names[unheard], home) {
			names[unheard] = append(names[unheard], home)
		}
		what := refuse
		switch {
		case r.OnPartition == counter.FailAllow && n.link.Shares(r):
			what = floor
		case r.OnPartition == counter.FailLocal:
			what = whole
		}
		names[what] = append(names[what], r.ID)
	}
	slices.Sort(names[unheard])
	var text []string
	for _, what := range []string{alone, unknown, unheard, refuse, floor, whole} {
		if len(names[what]) > 0 {
			text = append(text, what+few(names[what]))
		}
	}
	return strings.Join(text, ". ")
}
