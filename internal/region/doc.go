// Package region makes one limit of those that several regions have, each with a Redis of its own. A global limit's counters
// are in the store of one region, its home, and the others ask that at every check, over a link between their nodes. Nobody
// votes: the home decides, as it does for its own nodes, so all regions together admit what one would.
//
//	region.Store   what a limiter counts in: the region's own store for most limits, and the home's for global ones
//	region.Link    what a node says to nodes of other regions, and hears of them
package region
