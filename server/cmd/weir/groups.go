package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a titled group of a command's flags.
type flagGroup struct {
	title string
	flags []string
}

var serveGroups = []flagGroup{
	{"Ports", []string{"http", "grpc", "admin", "metrics", "gateway"}},
	{"Rules", []string{"rules", "seed-rules", "data", "ipv4-prefix", "ipv6-prefix"}},
	{"Store", []string{"store", "store-prefix", "store-timeout", "emergency-limit", "memory-cap"}},
	{"Regions", []string{"region", "region-timeout"}},
	{"Gateway", []string{"upstream", "allow-unsafe-paths", "preflight-limit", "max-waiting", "connections-per-ip", "usage-header"}},
	{"Envoy", []string{"envoy-config", "grpc-reflection"}},
	{"Who may ask", []string{"http-token", "admin-token", "admin-tokens", "trusted-proxies", "tls-cert", "tls-key", "tls-client-ca", "grpc-tls-cert", "grpc-tls-key", "http-client-ca", "grpc-client-ca", "grpc-client-san", "admin-client-ca"}},
	{"Seeing what it does", []string{"decision-log", "decision-log-sample", "budget-webhook", "budget-webhook-token-file", "budget-full-names", "log-format", "log-level", "pprof"}},
	{"Running", []string{"config", "max-in-flight", "drain-notice", "drain-timeout"}},
}

// inGroups makes a command's help show its flags in groups. Other flags come last.
func inGroups(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		named := map[string]bool{}
		for _, g := range groups {
			set := pflag.NewFlagSet("", pflag.ContinueOnError)
			set.SortFlags = false
			for _, name := range g.flags {
				set.AddFlag(cmd.Flags().Lookup(name))
				named[name] = true
			}
			fmt.Fprintf(out, "\n%s:\n%s", g.title, set.FlagUsages())
		}
		other := pflag.NewFlagSet("", pflag.ContinueOnError)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !named[f.Name] {
				other.AddFlag(f)
			}
		})
		fmt.Fprintf(out, "\nOther:\n%s", other.FlagUsages())
		return nil
	})
}
