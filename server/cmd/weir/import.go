package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/rules/imports"
)

func importEnvoyCommand() *cobra.Command {
	return importCommand("import envoy", func(cmd *cobra.Command, args []string) (*imports.Result, string, error) {
		if len(args) == 0 {
			return nil, "", errors.New("name the folder of the configuration, or its files")
		}
		var files []envoy.File
		for _, name := range args {
			more, err := envoyFiles(cmd, name)
			if err != nil {
				return nil, "", err
			}
			files = append(files, more...)
		}
		r, err := imports.Envoy(files)
		return r, "no descriptor has a rate_limit", rejected(err)
	})
}

func envoyFiles(cmd *cobra.Command, name string) ([]envoy.File, error) {
	info, err := os.Stat(name)
	if name != "-" && err == nil && info.IsDir() {
		files, _, err := envoy.ReadFolder(name)
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("%s: has no *.yaml: name the folder of the configuration, often .../ratelimit/config", name)
		}
		return files, err
	}
	text, err := readFile(cmd, name, envoy.MaxFile)
	return []envoy.File{{Name: name, Text: text}}, err
}

func importNginxCommand() *cobra.Command {
	return importCommand("import nginx", func(cmd *cobra.Command, args []string) (*imports.Result, string, error) {
		name := args[0]
		text, err := readFile(cmd, name, imports.MaxConf)
		if err != nil {
			return nil, "", err
		}
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || manifest.Match(text) {
			return nil, "", rejected(fmt.Errorf("%s: is not a configuration of nginx; annotations of ingress-nginx aren't read, and weir import envoy reads envoyproxy/ratelimit's files", name))
		}
		r, err := imports.Nginx(name, text)
		return r, "there is no limit_req, or each of them was left out", rejected(err)
	})
}

// manifest matches Kubernetes manifests, but not configurations of nginx.
var manifest = regexp.MustCompile(`(?m)^[\s{]*"?apiVersion"?:`)

// importCommand returns a command that calls read, and prints the rules and notes that it returns. If there are no
// rules, the text none explains why.
func importCommand(path string, read func(*cobra.Command, []string) (r *imports.Result, none string, err error)) *cobra.Command {
	var asJSON jsonFlag
	cmd := command(path, func(cmd *cobra.Command, args []string) error {
		r, none, err := read(cmd, args)
		if err != nil {
			return err
		}
		differ, words := 0, cmd.ErrOrStderr()
		for _, n := range r.Notes {
			word := "note:"
			if n.Differs {
				differ++
				word = "differs:"
			}
			if !asJSON {
				fmt.Fprintln(words, word, n)
			}
		}
		switch {
		case r.Rules == 0:
			return &exit{exitRefused, errors.New("there is no limit to import: " + none)}
		case bool(asJSON):
			return printJSON(cmd, map[string]any{"rules": r.Rules, "text": string(r.Text), "notes": append([]imports.Note{}, r.Notes...)})
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s", r.Text)
		fmt.Fprintf(words, "%s; not one to one: %d\n", count(r.Rules, "rule"), differ)
		return nil
	}, &asJSON)
	cmd.Flags().Lookup("json").Usage = "print JSON: the rules as text, and the notes"
	return cmd
}
