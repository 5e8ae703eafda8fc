package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/server/internal/serve"
)

func demoCommand() *cobra.Command {
	var colour colour
	return command("demo", func(cmd *cobra.Command, _ []string) error {
		if err := demo(cmd.Context(), cmd.OutOrStdout(), &colour); err != nil {
			return &exit{exitUnavailable, err}
		}
		return nil
	}, &colour)
}

// demoTries is more requests than the starter rules allow, including what refills during the demo.
const demoTries = 1000

// demo starts a node with an API behind it, shows what a client sees, and stops both.
func demo(ctx context.Context, w io.Writer, colour *colour) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	api := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "your orders")
	})}
	defer api.Close()
	go func() { _ = api.Serve(l) }()
	data, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	var client sync.WaitGroup
	var failed error
	err = serve.Run(ctx, serve.Config{
		Data: data, Gateway: "127.0.0.1:0", Upstream: &url.URL{Scheme: "http", Host: l.Addr().String()}, DrainTimeout: time.Second,
	}, version, slog.New(slog.DiscardHandler), func(l serve.Listening) {
		client.Go(func() {
			defer stop()
			failed = demoClient(ctx, "http://"+l.Gateway.String(), w, colour)
		})
	})
	stop()
	client.Wait()
	return cmp.Or(err, failed)
}

func demoClient(ctx context.Context, gateway string, w io.Writer, colour *colour) error {
	fmt.Fprintf(w, "An API, and Weir in front of it with the starter rules: 100 requests a minute for each key.\nA client asks for %s/v1/orders with the key sk_123:\n\n", gateway)
	for n := 1; n <= demoTries; n++ {
		res, body, err := demoAsk(ctx, gateway)
		if err != nil {
			return err
		}
		allowed, left := res.StatusCode == http.StatusOK, res.Header.Get("X-RateLimit-Remaining")
		switch {
		case n <= 3 || !allowed || left == "0":
			fmt.Fprintf(w, "%6d  %s  %s of %s left\n", n, colour.verdict(w, allowed, res.Status), left, res.Header.Get("X-RateLimit-Limit"))
		case n == 4:
			fmt.Fprintln(w, "     …")
		}
		if allowed {
			continue
		}
		fmt.Fprintln(w, "\nThe refusal:")
		for _, name := range []string{"Retry-After", "X-RateLimit-Rule", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"} {
			fmt.Fprintf(w, "  %s: %s\n", name, res.Header.Get(name))
		}
		fmt.Fprintf(w, "  %s\n", body)
		seconds, err := time.ParseDuration(res.Header.Get("Retry-After") + "s")
		if err == nil {
			rediscall.Sleep(ctx, seconds)
			res, _, err = demoAsk(ctx, gateway) // fails if ctx is done
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nAfter %.0f s, as it said: %s\n", seconds.Seconds(), colour.verdict(w, res.StatusCode == http.StatusOK, res.Status))
		fmt.Fprintf(w, "\nNow yours:  %s serve --gateway 127.0.0.1:8090 --upstream http://127.0.0.1:9000\n", os.Args[0])
		return nil
	}
	return fmt.Errorf("%d requests were allowed: that can't be", demoTries)
}

func demoAsk(ctx context.Context, gateway string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/v1/orders", nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("X-API-Key", "sk_123")
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, bytes.TrimSpace(body), err
}
