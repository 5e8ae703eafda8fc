package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// tokenFlag is a flag for the file with the token of a node's port. The token itself is never in a flag, because other
// users can see command lines.
type tokenFlag struct{ port, file string }

func (t *tokenFlag) register(f *pflag.FlagSet, port, what string) {
	t.port = port
	f.StringVar(&t.file, t.flag(), "", "file with the token for the "+what+" (default: the token in "+t.variable()+")")
	_ = cobra.MarkFlagFilename(f, t.flag()) // the flag exists, so there is no error
}

func (t *tokenFlag) flag() string     { return t.port + "-token-file" }
func (t *tokenFlag) variable() string { return "WEIR_" + strings.ToUpper(t.port) + "_TOKEN" }

// place returns where the token is read from: a file or an environment variable.
func (t *tokenFlag) place() string { return cmp.Or(t.file, t.variable()) }

// header returns the header with the token. It is empty if there is no token.
func (t *tokenFlag) header() (http.Header, error) {
	token := os.Getenv(t.variable())
	if t.file != "" {
		text, err := readFlag(t.flag(), t.file)
		if err != nil {
			return nil, err
		}
		if token = string(text); strings.TrimSpace(token) == "" {
			return nil, fmt.Errorf("--%s: %s is empty: it must hold the token", t.flag(), t.file)
		}
	}
	h := http.Header{}
	if token = strings.TrimSpace(token); token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s must hold one token and nothing else: letters, digits and signs, without spaces between them", t.place())
	}
	return h, nil
}

// wanted says how to give the command the token that the node requires.
func (t *tokenFlag) wanted() string {
	return "the node asks for a token: put it into " + t.variable() + ", or into a file that --" + t.flag() + " names"
}

// client doesn't follow redirects: nodes send none, and the token is only for the node.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

const (
	// patience is how long to wait for a node's response.
	patience = 10 * time.Second
	// maxAnswer is how many bytes of a response are read: enough for a rule document and its difference from another.
	maxAnswer = 32 << 20
)

// nodePort is a port of a running node, given by a command's flags.
type nodePort struct {
	name   string // "admin" or "http", as in the node's own flag
	addr   string
	secret tokenFlag
	tls    tlsFlags
}

// register adds the flags. The flag for the address and its environment variable have the same names as the node's own.
func (p *nodePort) register(cmd *cobra.Command, name, addr, what string) {
	env := "WEIR_" + strings.ToUpper(name)
	p.name = name
	cmd.Flags().StringVar(&p.addr, name, cmp.Or(os.Getenv(env), addr), what+" of the node, host:port or URL ("+env+")")
	p.secret.register(cmd.Flags(), name, what)
	p.tls.register(cmd.Flags())
}

type request struct {
	*nodePort
	method, url string
	header      http.Header
	body        []byte
}

// request prepares a request. A body that is a []byte is sent unchanged as YAML, and any other body as JSON.
func (p *nodePort) request(method, path string, body any, header http.Header) (*request, error) {
	h, err := p.secret.header()
	if err != nil {
		return nil, err
	}
	base, err := p.tls.address(p.name, p.addr)
	if err != nil {
		return nil, err
	}
	maps.Copy(h, header)
	r := &request{nodePort: p, method: method, url: base + path, header: h}
	switch b := body.(type) {
	case nil:
	case []byte:
		r.body = b
		h.Set("Content-Type", "application/yaml")
	default:
		r.body, err = json.Marshal(b)
		h.Set("Content-Type", "application/json")
	}
	return r, err
}

type answer struct {
	to     *request
	status int
	header http.Header
	body   []byte
}

// ask sends the request and reads the response, whatever its status.
func (r *request) ask(ctx context.Context) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := r.send(ctx)
	if err != nil {
		return nil, err
	}
	return r.read(res)
}

// send sends the request. Errors have an exit code, and name the flag with the node's address.
func (r *request) send(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header = r.header
	client, err := r.tls.client()
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, &exit{exitUnavailable, r.tls.unreached(r.url, r.name, err)}
	}
	return res, nil
}

func (r *request) read(res *http.Response) (*answer, error) {
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, &exit{exitUnavailable, err}
	}
	a := &answer{r, res.StatusCode, res.Header, body}
	if a.wantsTLS() {
		return nil, &exit{exitUnavailable, errWantsTLS("--" + r.name)}
	}
	return a, nil
}

// needsToken reports whether the node requires a token and the request had none.
func (a *answer) needsToken() bool {
	return a.status == http.StatusUnauthorized && a.to.header.Get("Authorization") == ""
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

// requestFlags are the flags that describe a request.
type requestFlags struct {
	checkapi.CheckRequest
	cost  int64
	named map[string]*string // attributes that have their own flags
	attrs []string
}

// register adds all flags, and registerRest those other than the key and the cost.
func (r *requestFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.Key, "key", "", "API key")
	cmd.Flags().Int64Var(&r.cost, "cost", 1, "tokens; 0 peeks")
	r.Cost = &r.cost
	r.registerRest(cmd)
}

func (r *requestFlags) registerRest(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Method, "method", "GET", "HTTP method")
	f.StringVar(&r.Path, "path", "", "path")
	f.StringVar(&r.IP, "ip", "", "the client's IP address")
	r.named = map[string]*string{"user": f.String("user", "", "user"), "org": f.String("org", "", "organisation"), "tier": f.String("tier", "", "tier")}
	f.StringArrayVar(&r.attrs, "attr", nil, "another attribute, NAME=VALUE; repeatable")
}

// check returns the request that a command's arguments and flags describe.
func (r *requestFlags) check(cmd *cobra.Command, args []string, amounts *amountFlags) (*checkapi.CheckRequest, error) {
	if err := r.argument(cmd, args); err != nil {
		return nil, err
	}
	if err := amounts.fill(cmd, &r.CheckRequest); err != nil {
		return nil, err
	}
	return r.wire()
}

// argument reads the key from the argument, if there is one.
func (r *requestFlags) argument(cmd *cobra.Command, args []string) (err error) {
	switch {
	case len(args) == 0:
	case cmd.Flags().Changed("key"):
		return errors.New("--key: the key is there already, as an argument: give it once")
	case cmd.Flags().Lookup("rules") != nil && isRuleFile(args[0]):
		return fmt.Errorf("%s takes a key: did you mean --rules %s?", cmd.CommandPath(), args[0])
	default:
		r.Key, err = keyOf(cmd, args[0])
	}
	return err
}

// wire returns the request in the form of the check API.
func (r *requestFlags) wire() (*checkapi.CheckRequest, error) {
	r.Attributes = map[string]string{}
	for name, v := range r.named {
		if *v != "" {
			r.Attributes[name] = *v
		}
	}
	for _, a := range r.attrs {
		name, v, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attr: must be NAME=VALUE, got %q", a)
		}
		r.Attributes[name] = v
	}
	_, err := r.decode()
	return &r.CheckRequest, err
}

// decode decodes the request in the same way as a node.
func (r *requestFlags) decode() (weir.Request, error) {
	body, err := json.Marshal(r.CheckRequest)
	if err != nil {
		return weir.Request{}, err
	}
	return checkapi.DecodeCheck(body)
}
