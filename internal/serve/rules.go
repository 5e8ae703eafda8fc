package serve

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/watch"
	"github.com/weirhq/weir/rulefile"
)

//go:embed starter.yaml
var starter []byte

// StarterName is what messages call the rules that come with the binary.
const StarterName = "starter.yaml"

// source is the rules in force and the text they were made of.
type source struct {
	file    string // "" for the starter rules
	limiter *weir.Limiter
	log     *slog.Logger
	inForce atomic.Pointer[document]
}

type document struct {
	text    []byte
	set     *weir.RuleSet
	version int64
	// rejected is what was wrong with the last save that isn't in force, or nil.
	rejected error
}

// readRules reads and compiles the rules to begin with.
func readRules(path string) (*document, error) {
	if path == "" {
		return parse(StarterName, starter, 1)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(path, text, 1)
}

func parse(name string, text []byte, version int64) (*document, error) {
	f, err := rulefile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	return &document{text: text, set: f.Set.WithVersion(version), version: version}, nil
}

// follow applies the rule file each time it is saved. What can't be is reported and changes nothing.
func (s *source) follow(ctx context.Context) error {
	if s.file == "" {
		<-ctx.Done()
		return nil
	}
	return watch.File(ctx, s.file, s.inForce.Load().text, s.save, func(err error) {
		s.log.Error("rules can't be read: the ones in force stay", "file", s.file, "error", err)
	})
}

func (s *source) save(text []byte) {
	old := s.inForce.Load()
	next, err := parse(s.file, text, old.version+1)
	if err != nil {
		kept := *old
		kept.rejected = err
		s.inForce.Store(&kept)
		var problems rulefile.Problems
		if !errors.As(err, &problems) {
			s.log.Error("rules rejected: the ones in force stay", "file", s.file, "error", err)
			return
		}
		for _, p := range problems {
			s.log.Error("rules rejected: the ones in force stay", "at", fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column), "error", p.String())
		}
		return
	}
	s.limiter.SetRules(next.set)
	s.inForce.Store(next)
	s.log.Info("rules applied", "file", s.file, "version", next.version, "rules", len(next.set.Rules().Rules))
	logWarnings(s.log, next.set)
}

func logWarnings(log *slog.Logger, set *weir.RuleSet) {
	for _, w := range set.Warnings() {
		log.Warn("rules", "at", w.Path, "warning", w.Text)
	}
}
