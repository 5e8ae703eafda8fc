package weir

import (
	"fmt"
	"github.com/weirhq/weir/counter"
)

// compileScope checks what a rule says of regions.
func (r *rule) compileScope(path string, bad *problems) {
	switch {
	case !r.Global && r.Home != "":
		bad.addf(path+".home", "is for rules with scope: global: each region counts this one for itself; leave it out, or add the scope")
	case !r.Global && r.Floor != 0:
		bad.addf(path+".floor", "is for rules with scope: global: each region counts this one for itself; leave it out, or add the scope")
	case !r.Global && r.OnPartition != FailAllow:
		bad.addf(path+".on_partition", "is for rules with scope: global: each region counts this one for itself; leave it out, or add the scope")
	case !r.Global:
	case r.Algorithm == SlidingLog || r.Algorithm == LeakyQueue || r.Algorithm == Concurrency:
		bad.addf(path+".scope", "%s can't be global: use token_bucket, leaky_bucket, fixed_window or sliding_window_counter, or leave the scope out", r.Algorithm)
	case r.Book || r.CountRefused:
		bad.addf(path+".scope", "a global rule can't have past_limit: leave one of them out")
	case r.Floor < 0 || r.Floor > 50:
		bad.addf(path+".floor", "must be from 0%% to 50%%, got %d%%", r.Floor)
	case r.Split > 0:
		bad.addf(path+".scope", "a global rule can't be split: leave one of them out")
	}
}

// scopeText says where a global rule is counted.
func (r *rule) scopeText() string {
	if !r.Global {
		return ""
	}
	home := "its home"
	if r.Home != "" {
		home += " " + r.Home
	}
	asks := "every check asks " + home + " in other regions"
	then := map[counter.FailureMode]string{FailAllow: "refused", FailRefuse: "refused", FailLocal: "counted in its own region, the whole limit in each,"}[r.OnPartition]
	travels := asks + ", and is " + then + " if there is no answer in time; Envoy's rate limit service waits for 15 ms if its caller sets no deadline"
	if r.Strict {
		return "global: " + travels
	}
	alone := map[counter.FailureMode]string{
		FailAllow:  fmt.Sprintf("goes on with the %d%% that are its own", r.Floor),
		FailRefuse: "refuses",
		FailLocal:  "counts the whole limit by itself",
	}[r.OnPartition]
	return fmt.Sprintf("global: each region decides by what it has of the limit, and borrows more of %s; one that is cut off %s. Of limits below 16 a region %s", home, alone, travels)
}
