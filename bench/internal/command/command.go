// Package command runs measurements. The first failure ends a measurement, just as t.Fatal ends a test, because the
// results would mean little after it.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Run is a measurement in progress. It has the methods of testing.TB that package redistest needs.
type Run struct {
	context.Context           // done when the measurement is interrupted
	Out, Log        io.Writer // for results, and for progress
	cleanups        []func()
}

// failure is the panic with which a measurement ends.
type failure struct{ error }

// Check ends the measurement if there is an error. Call it in the goroutine that makes the measurement.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must returns v, or ends the measurement if there is an error.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// begun is when the program started.
var begun = time.Now()

// Logf prints a line about the progress, beginning with the time since the program started.
func (r *Run) Logf(format string, args ...any) {
	fmt.Fprintf(r.Log, "%4.0fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
}

// Fatal ends the measurement.
func (r *Run) Fatal(args ...any) { Check(errors.New(fmt.Sprint(args...))) }

// Cleanup calls f when the measurement, or this part of it, ends. The last f is called first.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// TempDir makes a folder that is removed at the end.
func (r *Run) TempDir() string {
	dir := Must(os.MkdirTemp("", "weir"))
	r.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Package redistest needs the methods below, too.

func (r *Run) Helper()           {}
func (r *Run) Failed() bool      { return false }
func (r *Run) Error(args ...any) { fmt.Fprintln(r.Log, args...) }

// Part runs a part of the measurement, and then the cleanups that the part registered. If the part fails, the error
// starts with its name.
func (r *Run) Part(name string, measure func(*Run)) {
	if err := Do(r.Context, r.Out, r.Log, measure); err != nil {
		Check(fmt.Errorf("%s: %w", name, err))
	}
}

// Do runs a measurement, and returns the error that ended it.
func Do(ctx context.Context, out, log io.Writer, measure func(*Run)) (err error) {
	r := &Run{Context: ctx, Out: out, Log: log}
	defer func() {
		for _, f := range slices.Backward(r.cleanups) {
			f()
		}
	}()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	measure(r)
	return nil
}

// Main parses the flags, runs a measurement, and exits: with 0 if all targets were met, 1 if one was missed, 2 if the
// measurement failed, and 130 if it was interrupted.
func Main(measure func(*Run) (ok bool)) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, name := false, filepath.Base(os.Args[0])
	err := Do(ctx, os.Stdout, os.Stderr, func(r *Run) { ok = measure(r) })
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, name+": interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}
