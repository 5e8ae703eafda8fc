// Package report is how benchmarks tell what they measured: medians with their
// spread, tables in columns, targets met or missed, progress meanwhile.
package report
