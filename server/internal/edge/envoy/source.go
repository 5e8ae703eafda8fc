package envoy

import (
	"sync"
	"time"

	"github.com/weirhq/weir/rulefile"
)

// Source is where a service's configurations come from, and how the newest stands.
type Source struct {
	// Name is the folder, or the xDS server.
	Name string
	// Version is what the xDS server calls the configuration in force.
	Version string
	// Since is when it was put in force; zero if there is none yet.
	Since time.Time
	// Domains and Limits say how large it is.
	Domains, Limits int
	// Rejected says why the newest configuration isn't in force, or "".
	Rejected string
	// Rejections is how often newer configurations were invalid.
	Rejections uint64
	// Connected: there is a stream from the xDS server. If not, Lost says why.
	Connected bool
	Lost      string
}

// source is a Source that changes.
type source struct {
	mu  sync.Mutex
	now Source // guarded by mu
}

// Source says where configurations come from, and how the newest stands.
func (s *Service) Source() Source {
	s.source.mu.Lock()
	defer s.source.mu.Unlock()
	return s.source.now
}

func (s *Service) note(change func(*Source)) {
	s.source.mu.Lock()
	defer s.source.mu.Unlock()
	change(&s.source.now)
}

// accept puts a configuration in force.
func (s *Service) accept(c *Config, from, version string) {
	s.SetConfig(c)
	s.note(func(n *Source) {
		n.Name, n.Version, n.Since, n.Rejected = from, version, time.Now(), ""
		n.Domains, n.Limits = c.Domains(), c.Limits()
	})
}

// reject notes that a configuration can't be put in force. One that is rejected again for the same reason is logged once.
func (s *Service) reject(err error) {
	again := false
	s.note(func(n *Source) {
		again = n.Rejected == err.Error()
		n.Rejected = err.Error()
		n.Rejections++
	})
	if !again {
		s.opts.Logger.Error("envoy configuration rejected: the one in force stays", "error", err)
	}
}

// maxWarnings is how many are logged of a configuration.
const maxWarnings = 20

func (s *Service) warn(list rulefile.Problems) {
	for i, w := range list {
		if i == maxWarnings {
			s.opts.Logger.Warn("envoy configuration: there are more warnings", "more", len(list)-i)
			return
		}
		s.opts.Logger.Warn("envoy configuration", "warning", w.String())
	}
}
