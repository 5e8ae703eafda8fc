// Package link lets package weir hand functions to package private, which imports it. Package weir sets the variables when it
// is initialized, and package private gives them types.
package link

// The functions of package private.
var (
	Attributes, CheckTogether, Counters, Credit, Definition, Dimensions, GiveBack, Guess, Now, PerUser, Price, ReadSubject,
	Reserved, Reserves, Seal, SetSecret, Take, Tell, WithDenied, WithVersion any
)
