// Package report prints what measurements found: medians with their spread, tables, targets met or missed, and progress.
package report
