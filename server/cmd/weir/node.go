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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/rediscall"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/serve"
)

// client doesn't follow redirects: nodes send none, and the token must not be sent elsewhere.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

const (
	// patience is how long to wait for a node's response.
	patience = 10 * time.Second
	// maxAnswer is how many bytes of a response are read. It is enough for a rule document and its difference from
	// another one.
	maxAnswer = 32 << 20
)

// nodePort describes how to reach a port of a running node, according to a command's flags. The token comes from a file
// or the environment, because other users of the machine can see command lines.
type nodePort struct {
	name      string // "admin" or "http", as in the name of the node's flag
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

// open sends a request, and returns the response without reading its body. A request body that is a []byte is sent
// unchanged as YAML, and any other body as JSON. Errors of the connection have an exit code, and name the flag for the
// node's address.
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

type adminPort struct {
	nodePort
	wait   time.Duration // how long to retry if the node can't read or write its rules
	asJSON jsonFlag      // print responses in the JSON that the node sent
}

func (n *adminPort) register(cmd *cobra.Command) {
	n.nodePort.register(cmd, "admin", "127.0.0.1:8082", "admin port")
	n.asJSON.register(cmd)
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
}

// show sends a request to the node and prints the response. With --json, it prints the response unchanged, and
// otherwise it calls print.
func show[T any](n *adminPort, cmd *cobra.Command, method, path string, body any, print func(*T)) error {
	v, sent, err := get[T](n, cmd, method, path, body, nil)
	switch {
	case err != nil:
		return err
	case bool(n.asJSON):
		return printJSON(cmd, sent)
	}
	print(&v)
	return nil
}

// get sends a request to the node, and returns the decoded response, and its unchanged text.
func get[T any](n *adminPort, cmd *cobra.Command, method, path string, body any, header http.Header) (v T, sent json.RawMessage, err error) {
	a, err := n.call(cmd, method, path, body, header)
	if err != nil {
		return v, nil, err
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		return v, nil, notUnderstood(err)
	}
	return v, a.body, nil
}

const (
	retryEvery  = 500 * time.Millisecond // while the node can't read or write its rules
	remindEvery = 5 * time.Second        // how often to print on stderr what the command is waiting for
)

// call sends a request to the node. While the node can't read or write its rules, call retries until n.wait has passed.
// If the status isn't 2xx, call returns a refusal, whose text says what to do.
func (n *adminPort) call(cmd *cobra.Command, method, path string, body any, header http.Header) (*answer, error) {
	ctx := cmd.Context()
	stopped := &exit{exitUnavailable, errors.New("stopped while waiting for the node's rules: as far as is known, nothing was changed")}
	began, reminded := time.Now(), time.Time{}
	for {
		a, err := n.ask(ctx, method, path, body, header)
		switch {
		case err != nil && !reminded.IsZero() && ctx.Err() != nil:
			return nil, stopped
		case err != nil:
			return nil, err
		case a.StatusCode >= 200 && a.StatusCode < 300:
			return a, nil
		}
		err = a.refused()
		r, unavailable := refused(err, http.StatusServiceUnavailable)
		left := n.wait - time.Since(began)
		switch {
		case !unavailable || r.Code != jsonerror.RulesUnavailable && r.Code != jsonerror.Busy:
			return nil, err
		case n.wait == 0 && cmd.Flags().Lookup("wait") != nil:
			return nil, &exit{r.exitCode(), fmt.Errorf("%w; to keep trying, repeat it with --wait 5m", r)}
		case left <= 0:
			return nil, err
		case time.Since(reminded) >= remindEvery:
			reminded = time.Now()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s; trying again for %s, unless Ctrl-C ends it\n", r.Message, left.Round(time.Second))
		}
		if !rediscall.Sleep(ctx, min(left, retryEvery)) {
			return nil, stopped
		}
	}
}

func (a *answer) refused() error {
	var e struct{ Error fault }
	_ = json.Unmarshal(a.body, &e) // if this fails, the error has only the status
	r := &refusal{a, e.Error}
	return &exit{r.exitCode(), r}
}

func notUnderstood(err error) error {
	return &exit{exitUnavailable, fmt.Errorf("the node's answer isn't understood: is it a Weir node, of this version? %w", err)}
}

func (a *answer) version() (int64, error) {
	n, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(a.Header.Get("ETag"), "W/"), `"`), 10, 64)
	switch {
	case err != nil:
		return 0, &exit{exitUnavailable, errors.New("the answer has no version of the rules: is it a Weir node?")}
	case n < 1:
		return 0, &exit{exitUnavailable, errors.New("the node hasn't reached its rule store yet, and can't change rules: try again when it has")}
	}
	return n, nil
}

func ifMatch(version int64) http.Header {
	return http.Header{"If-Match": {`"` + strconv.FormatInt(version, 10) + `"`}}
}

// refusal is the error for a response with a status other than 2xx.
type refusal struct {
	*answer
	fault
}

type fault struct {
	jsonerror.Error
	Details adminapi.Rejection `json:"details"`
}

func (r *refusal) Error() string {
	status, url := r.StatusCode, r.Request.URL.String()
	switch {
	case status == http.StatusUnauthorized && r.Request.Header.Get("Authorization") == "":
		return "the node asks for a token: put it into " + r.from.tokenVariable() + ", or into a file that --" + r.from.tokenFlag() + " names"
	case status == http.StatusUnauthorized:
		return "the node doesn't know the token of " + cmp.Or(r.from.tokenFile, r.from.tokenVariable()) + ": is it this node's, and complete?"
	case status == http.StatusForbidden && r.Code == jsonerror.Forbidden:
		return cmp.Or(r.Message, "the token may only read") + ": use one with the role operate"
	case status == http.StatusTooManyRequests:
		return "the node has seen too many bad tokens from here: correct the token, and try again in " + cmp.Or(r.answer.Header.Get("Retry-After"), "60") + " s"
	case status == http.StatusUnprocessableEntity && len(r.Details.Problems) > 0:
		return count(len(r.Details.Problems), "problem") + ": nothing was changed"
	case status == http.StatusUnprocessableEntity && len(r.Details.Warnings) > 0:
		return count(len(r.Details.Warnings), "warning") + ": nothing was changed; --dry-run shows the difference, and --force makes the change"
	case r.Message != "" && slices.Contains(rejections, status):
		return r.Message
	case r.isWrongPort() && r.from.name == "admin":
		return "--admin: " + url + " is on a node's check port: give its admin port, which is 127.0.0.1:8082 unless the node was told another"
	case r.isWrongPort():
		return "--http: " + url + " is on a node's admin port: give its check port, which is 127.0.0.1:8080 unless the node was told another"
	}
	return unexpected(url, status, r.body).Error()
}

// isWrongPort reports whether another port of the node sent the response, which has other paths.
func (r *refusal) isWrongPort() bool {
	return r.StatusCode == http.StatusNotFound && (r.Message == checkapi.NothingHere || strings.HasPrefix(r.Message, serve.AdminPort))
}

// rejections are the statuses of responses to requests that the node understood, but rejected.
var rejections = []int{http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

func (r *refusal) exitCode() int {
	switch {
	case r.isWrongPort():
		return exitUsage
	case r.StatusCode == http.StatusNotFound && r.Code != "": // a version or a rule doesn't exist. Without a code, the response doesn't come from a node
		return exitRefused
	case slices.Contains(rejections, r.StatusCode):
		return exitRefused
	}
	return noDecision(r.StatusCode)
}

// refused returns the refusal in err if it has the given status.
func refused(err error, status int) (*refusal, bool) {
	r, ok := errors.AsType[*refusal](err)
	return r, ok && r.StatusCode == status
}
