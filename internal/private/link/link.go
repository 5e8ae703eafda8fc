// Package link lets package weir hand functions to package private, which imports it. Package weir sets the variables when it
// is initialized, and package private gives them types.
package link

// MaxPath is how long a path may be, in bytes. Reading a longer path in every way would cost too much, so it is refused.
const MaxPath = 4096

// The functions of package private.
var (
	Attributes, CheckTogether, Counters, Credit, Definition, Dimensions, GiveBack, Guess, Now, PerUser, Price, ReadSubject,
	Reserved, Reserves, Seal, SetSecret, Take, Tell, WithDenied, WithVersion any
)
