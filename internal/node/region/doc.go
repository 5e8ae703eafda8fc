// Package region makes one limit out of the limits of several regions, each with a Redis of its own.
// Every region owns a share of a global limit and decides by itself. A region that has too little
// borrows tokens from the others, over a link between their nodes. Tokens only move, so all regions
// together admit what one would. Limits that are strict, or too small to be shared, are counted in
// the store of one region, their home, which the others ask on every check. There is no election: a
// home is a setting, and only an operator changes it. ADR 22 and 23 give the reasons.
//
//	region.Store     the limiter's store: the region's own store, its stakes in shared limits, and other regions' stores
//	region.Link      messages between this node and nodes of other regions
//	region.Topology  which regions are homes, drained or forgotten, as changed by operators
//	region.Cells     where a region keeps its stakes and the topology
//
// The arithmetic of shares and loans is in internal/node/stake.
package region
