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
	var asJSON bool
	cmd := command("import envoy", func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("name the folder of the configuration, or its files")
		}
		var files []envoy.File
		for _, name := range args {
			more, err := envoyFiles(cmd, name)
			if err != nil {
				return &exit{exitUsage, err}
			}
			files = append(files, more...)
		}
		r, err := imports.Envoy(files)
		return printImport(cmd, r, err, asJSON, "no descriptor has a rate_limit")
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: the rules as text, and the notes")
	return cmd
}

// envoyFiles reads a file, or the files of a folder.
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
	var asJSON bool
	cmd := command("import nginx", func(cmd *cobra.Command, args []string) error {
		name := args[0]
		text, err := readFile(cmd, name, imports.MaxConf)
		if err != nil {
			return &exit{exitUsage, err}
		}
		read, none := imports.Nginx, "there is no limit_req, or each of them was left out"
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) || name == "-" && manifest.Match(text) {
			read, none = imports.Ingress, "no Ingress has limit-rps, limit-rpm or global-rate-limit; weir import envoy reads envoyproxy/ratelimit's files"
		}
		r, err := read(name, text)
		return printImport(cmd, r, err, asJSON, none)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: the rules as text, and the notes")
	return cmd
}

// manifest matches Kubernetes manifests, and no configuration of nginx.
var manifest = regexp.MustCompile(`(?m)^[\s{]*"?apiVersion"?:`)

// printImport prints the rules and the notes about them. If there are no rules, it says why.
func printImport(cmd *cobra.Command, r *imports.Result, err error, asJSON bool, none string) error {
	if err != nil {
		return &exit{exitRefused, err}
	}
	differ := 0
	for _, n := range r.Notes {
		word := "note:"
		if n.Differs {
			differ++
			word = "differs:"
		}
		if !asJSON {
			fmt.Fprintln(cmd.ErrOrStderr(), word, n)
		}
	}
	if r.Rules == 0 {
		return &exit{exitRefused, errors.New("there is no limit to import: " + none)}
	}
	if asJSON {
		return printJSON(cmd, map[string]any{"rules": r.Rules, "text": string(r.Text), "notes": append([]imports.Note{}, r.Notes...)})
	}
	_, err = cmd.OutOrStdout().Write(r.Text)
	fmt.Fprintf(cmd.ErrOrStderr(), "%s; not one to one: %d\n", count(r.Rules, "rule"), differ)
	return err
}
