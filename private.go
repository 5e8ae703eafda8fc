package weir

import (
	"time"

	"github.com/weirhq/weir/internal/private/link"
)

// Package internal/private documents these functions, and exports them to Weir's other packages.
func init() {
	link.Attributes = func(rs *RuleSet) []string { return rs.attributes }
	link.Borrows = (*Rule).borrows
	link.By = (*Rule).dimensions
	link.CheckTogether = (*Limiter).checkTogether
	link.Counters = (*Limiter).counters
	link.Covers = (*RuleSet).covers
	link.Credit = (*Limiter).credit
	link.Definition = (*Rule).definition
	link.Dimensions = dimensionsListed
	link.GiveBack = (*Limiter).giveBack
	link.Guess = func(req *Request) { req.guess = true }
	link.Now = func(l *Limiter) time.Time { return l.opts.Now() }
	link.PerUser = perUser
	link.PoliciesOf = (*RuleSet).policiesOf
	link.Price = (*RuleSet).highestPrice
	link.ReadSubject = (*Rule).readSubject
	link.Reserved = (*Decision).reserved
	link.Reserves = (*Limiter).reserves
	link.Seal = (*Limiter).seal
	link.SetSecret = (*Limiter).setSecret
	link.Take = (*Limiter).take
	link.Tell = (*Limiter).tell
	link.WithDenied = (*RuleSet).withDenied
	link.WithVersion = (*RuleSet).withVersion
}
