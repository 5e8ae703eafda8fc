// Package region makes one limit of those that several regions have, each with a Redis of its own. Every region owns a share of a global limit
// and decides by itself; one that has too little borrows tokens of the others, over a link between their nodes. Tokens only move, so all regions
// together admit what one would. Limits that are strict, or too small to be shared, are counted in the store of one region, their home, and the
// others ask it at every check. Nobody votes: a home is a setting, which only an operator changes. ADR 22 and 23 say why.
//
//	region.Store     what a limiter counts in: the region's own store, its stakes in shared limits, and the homes of those that travel
//	region.Link      what a node says to nodes of other regions, and hears of them
//	region.Topology  which regions are homes, drained or forgotten, by what operators have said
//	region.Cells     where a region keeps its stakes and the topology
//
// The arithmetic of shares and loans is in internal/node/stake.
package region
