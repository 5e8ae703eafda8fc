package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/jsonerror"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/serve"
)

// adminPort is the admin port of a node, given by a command's flags.
type adminPort struct {
	nodePort
	wait   time.Duration // how long to retry while the node can't read or write its rules
	asJSON jsonFlag      // print responses as the node sent them
}

func (n *adminPort) register(cmd *cobra.Command) {
	n.nodePort.register(cmd, "admin", "127.0.0.1:8082", "admin port")
	n.asJSON.register(cmd)
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
}

// show sends a request to the node and prints the response: unchanged with --json, and otherwise with print.
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

// get sends a request to the node, and returns the response both decoded and unchanged.
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
	remindEvery = 5 * time.Second        // how often the command says on stderr what it waits for
)

// call sends a request to the node. While the node can't read or write its rules, call retries until n.wait has
// passed. For a status other than 2xx it returns a refusal, whose text says what to do.
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
		if pause(ctx, min(left, retryEvery)) != nil {
			return nil, stopped
		}
	}
}

// refused returns the error for a response with a status other than 2xx.
func (a *answer) refused() error {
	var e struct{ Error fault }
	_ = json.Unmarshal(a.body, &e) // if the body isn't JSON, the error has only the status
	r := &refusal{a, e.Error}
	return &exit{r.exitCode(), r}
}

func notUnderstood(err error) error {
	return &exit{exitUnavailable, fmt.Errorf("the node's answer isn't understood: is it a Weir node, of this version? %w", err)}
}

// version returns the version of the rules in the response's ETag.
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

// fault is the object "error" in a response.
type fault struct {
	jsonerror.Error
	Details adminapi.Rejection `json:"details"`
}

// Error returns a text that says what the user can do.
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

// isWrongPort reports whether the response came from a different port of the node, which has other paths.
func (r *refusal) isWrongPort() bool {
	return r.StatusCode == http.StatusNotFound && (r.Message == checkapi.NothingHere || strings.HasPrefix(r.Message, serve.AdminPort))
}

// rejections are statuses of requests that the node understood, but doesn't carry out.
var rejections = []int{http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

func (r *refusal) exitCode() int {
	switch {
	case r.isWrongPort():
		return exitUsage
	case r.StatusCode == http.StatusNotFound && r.Code != "": // a version or a rule doesn't exist; without a code, the response isn't from a node
		return exitRefused
	case slices.Contains(rejections, r.StatusCode):
		return exitRefused
	}
	return noDecision(r.StatusCode)
}

// refused returns the refusal in err if it has that status.
func refused(err error, status int) (*refusal, bool) {
	r, ok := errors.AsType[*refusal](err)
	return r, ok && r.StatusCode == status
}
