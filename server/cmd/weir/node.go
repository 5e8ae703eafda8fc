package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// client doesn't follow redirects: nodes send none, and the token is only for the node.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

const (
	// patience is how long to wait for a node's response.
	patience = 10 * time.Second
	// maxAnswer is how many bytes of a response are read: enough for a rule document and its difference from another.
	maxAnswer = 32 << 20
)

// nodePort is a port of a running node, given by a command's flags. The token is read from a file or the environment,
// because other users can see command lines.
type nodePort struct {
	name      string // "admin" or "http", as in the node's own flag
	addr      string
	tokenFile string
	tlsFlags
}

// register adds the flags. The flag for the address and its environment variable have the same names as the node's own.
func (p *nodePort) register(cmd *cobra.Command, name, addr, what string) {
	env := "WEIR_" + strings.ToUpper(name)
	cmd.Flags().StringVar(&p.addr, name, cmp.Or(os.Getenv(env), addr), what+" of the node, host:port or URL ("+env+")")
	p.registerAccess(cmd.Flags(), name, what)
}

// registerAccess adds the flags for the token and the certificates.
func (p *nodePort) registerAccess(f *pflag.FlagSet, name, what string) {
	p.name = name
	f.StringVar(&p.tokenFile, p.tokenFlag(), "", "file with the token for the "+what+" (default: the token in "+p.tokenVariable()+")")
	_ = cobra.MarkFlagFilename(f, p.tokenFlag()) // the flag exists, so there is no error
	p.tlsFlags.register(f)
}

func (p *nodePort) tokenFlag() string     { return p.name + "-token-file" }
func (p *nodePort) tokenVariable() string { return "WEIR_" + strings.ToUpper(p.name) + "_TOKEN" }

// authorization returns the header with the token. It is empty if there is no token.
func (p *nodePort) authorization() (http.Header, error) {
	token := os.Getenv(p.tokenVariable())
	if p.tokenFile != "" {
		text, err := readFlag(p.tokenFlag(), p.tokenFile)
		if err != nil {
			return nil, err
		}
		if token = string(text); strings.TrimSpace(token) == "" {
			return nil, fmt.Errorf("--%s: %s is empty: it must hold the token", p.tokenFlag(), p.tokenFile)
		}
	}
	h := http.Header{}
	if token = strings.TrimSpace(token); token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s must hold one token and nothing else: letters, digits and signs, without spaces between them", cmp.Or(p.tokenFile, p.tokenVariable()))
	}
	return h, nil
}

// answer is a node's response.
type answer struct {
	*http.Response
	from *nodePort
	body []byte
}

// ask sends a request and reads the response, whatever its status.
func (p *nodePort) ask(ctx context.Context, method, path string, body any, header http.Header) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := p.open(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	return p.read(res)
}

// open sends a request, and returns the response with its body unread. A body that is a []byte is sent unchanged as YAML,
// and any other body as JSON. Errors of the connection have an exit code, and name the flag with the node's address.
func (p *nodePort) open(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	h, err := p.authorization()
	if err != nil {
		return nil, err
	}
	base, err := p.address(p.name, p.addr)
	if err != nil {
		return nil, err
	}
	text, isYAML := body.([]byte)
	switch {
	case isYAML:
		h.Set("Content-Type", "application/yaml")
	case body != nil:
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
		h.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	maps.Copy(h, header)
	req.Header = h
	client, err := p.client()
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, &exit{exitUnavailable, p.unreached(base, p.name, err)}
	}
	return res, nil
}

func (p *nodePort) read(res *http.Response) (*answer, error) {
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, &exit{exitUnavailable, err}
	case wantsTLS(res.StatusCode, body):
		return nil, &exit{exitUnavailable, errWantsTLS("--" + p.name)}
	}
	return &answer{res, p, body}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unexpected returns the error for a response that the command can't use.
func unexpected(url string, status int, answer []byte) error {
	var e checkapi.ErrorResponse
	if json.Unmarshal(answer, &e) == nil && e.Error.Message != "" {
		return fmt.Errorf("%s answers %d: %s", url, status, e.Error.Message)
	}
	return fmt.Errorf("%s answers %d: is it a Weir node?", url, status)
}

func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
