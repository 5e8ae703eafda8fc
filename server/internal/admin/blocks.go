package admin

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/lint"
	"github.com/weirhq/weir/internal/node/rulestore"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// block prepares a change of the deny list in such a way that it always succeeds. It needs no force. If an entry can't
// be added to the rules, it is added to the emergency list. If an entry is removed, it is removed from both lists.
func (a *API) block(r *call, c *change, entry string, remove bool) *jsonerror.Error {
	if remove {
		c.then = func(out *Changed, f *jsonerror.Error) (*Changed, *jsonerror.Error) {
			return a.lift(r, c, entry, out, f)
		}
		return nil
	}
	if _, err := lint.Denied(new(weir.RuleSet), entry); err != nil {
		return invalid(err)
	}
	c.unasked = true
	c.then = func(out *Changed, f *jsonerror.Error) (*Changed, *jsonerror.Error) {
		inFile := a.Rules.File() != ""
		if f == nil && !inFile || f != nil && f.Code == jsonerror.Conflict && c.ifMatch.Number != 0 {
			return out, f
		}
		out = a.emergency(c)
		if inFile && a.listed(entry) {
			return out, nil
		}
		if f == nil { // it was a dry run
			f = a.inFile()
		}
		does := "goes on the emergency list"
		if a.Rules.Blocks().Has(entry) {
			does = "is already on the emergency list"
		}
		out.warn("%s; the entry %s, until weir keys block --remove takes it off", f.Message, does)
		a.edit(r, out, entry, "added", func(b *rulestore.Blocks) bool { return b.Put(entry, c.author, c.message) })
		return out, nil
	}
	return nil
}

func (a *API) listed(entry string) bool {
	return slices.Contains(a.Rules.InForce().File.Rules.Deny, entry)
}

// lift removes an entry from the emergency list, after the attempt to remove it from the rules. out and f are the
// outcome of that attempt.
func (a *API) lift(r *call, c *change, entry string, out *Changed, f *jsonerror.Error) (*Changed, *jsonerror.Error) {
	blocks, inFile := a.Rules.Blocks(), a.Rules.File() != ""
	switch listed := a.listed(entry); {
	case f != nil && !blocks.Has(entry) && inFile && !listed:
		return nil, noEntry("denylist", entry)
	case !blocks.Has(entry):
		return out, f
	case f == nil: // the change has also removed the entry from the rules
	case listed && !inFile:
		return nil, f // the rules still block the entry, so it stays on both lists
	default:
		out = a.emergency(c)
		if listed {
			out.warn("%s: it still has the entry", f.Message)
		}
	}
	a.edit(r, out, entry, "removed", func(b *rulestore.Blocks) bool { return b.Remove(entry, c.author) })
	return out, nil
}

// edit makes a change of the emergency list, and saves the list to the file and to Redis. In a dry run, it makes no
// change. It records in out what it changed, and where it couldn't save.
func (a *API) edit(r *call, out *Changed, entry, what string, change func(*rulestore.Blocks) bool) {
	blocks := a.Rules.Blocks()
	if out.DryRun {
		if blocks.Has(entry) == (what == "removed") {
			out.Emergency = what
		}
		return
	}
	if change(blocks) {
		out.Emergency = what
		a.audit(r, "emergency list: entry "+what, "entry", shown.Entry(entry))
	}
	inFile, inRedis := blocks.Sync(r.Context()) // even if this changed nothing, an earlier change may not have been saved everywhere
	if inFile != nil {
		out.warn("the emergency list can't be kept in --data, which is tried again every second: %v", inFile)
	}
	if inRedis != nil {
		out.warn("other nodes don't know of it yet, since Redis can't be reached, which is tried again every second: %v", inRedis)
	}
}

// emergency returns the response to a change that affected only the emergency list, so that there is no new version of
// the rules.
func (a *API) emergency(c *change) *Changed {
	version := a.Rules.InForce().Version
	return &Changed{Version: version, DryRun: c.dryRun, Warnings: []rulefile.Problem{}, before: version}
}

// warn adds a warning that isn't about a line of the rules.
func (c *Changed) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, rulefile.Problem{Text: fmt.Sprintf(format, args...)})
}

// Unlisted returns a warning for each entry of the emergency list that the rules don't block. When an operator removes
// such an entry, the client is let through.
func Unlisted(emergency []Block, set *weir.RuleSet) (all []rulefile.Problem) {
	for _, b := range emergency {
		if denied, _ := private.Covers(set, b.Entry); !denied {
			all = append(all, rulefile.Problem{Text: shown.Entry(b.Entry) + " is blocked by the emergency list and not by these rules: add it to deny, and take it off that list with weir keys block --remove"})
		}
	}
	return all
}

func (a *API) emergencyList() (all []Block) {
	for _, b := range a.Rules.Blocks().List() {
		all = append(all, Block{b.Entry, b.By, b.Message, b.Time})
	}
	return all
}

// NoEntry is part of the error that the list doesn't have the entry to remove.
const NoEntry = " has no entry "

func noEntry(name, entry string) *jsonerror.Error {
	return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "the %s"+NoEntry+"%s: GET /v1/%s shows those that it has", name, shown.Entry(entry), name)
}
