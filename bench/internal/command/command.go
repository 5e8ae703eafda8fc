// Package command has the main function that all measurements share.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a measurement and exits: with 0 if all targets were met, 1 if one was missed, 2 if the measurement
// failed, and 130 if it was interrupted.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case ok && err == nil, errors.Is(err, flag.ErrHelp):
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, name+": interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(2)
	default:
		os.Exit(1)
	}
}
