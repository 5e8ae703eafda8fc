package budget

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Webhook sends events to a URL, one at a time, as JSON with POST. Make one with [NewWebhook].
type Webhook struct {
	url, token string
	place      string // the URL without secrets, for messages
	log        *slog.Logger
	client     *http.Client
	queue      chan *Event

	sent, failed, dropped atomic.Uint64

	stopping context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
	lost     int       // how many events in a row couldn't be sent; only run uses it
	told     time.Time // when failures were last logged; only run uses it
}

const (
	sending     = 5 * time.Second // the longest time that an attempt may take
	backoff     = time.Second     // the pause before the second attempt; each further pause is twice as long
	longestWait = 2 * backoff     // the pause before the last attempt
	unsent      = 256             // how many events may be queued
	tellEvery   = time.Minute
)

// CheckURL returns an error if a text isn't a valid URL of a webhook. The error doesn't quote the URL, because it may
// contain a secret.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("must be a URL such as https://example.com/budgets, with http or https")
	}
	return nil
}

// Place returns the URL of a webhook without the parts that may contain a secret.
func Place(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// NewWebhook makes a webhook for a URL that [CheckURL] accepts. If token isn't "", it is sent as a bearer token.
func NewWebhook(to, token string, log *slog.Logger) *Webhook {
	h := &Webhook{
		url: to, token: token, place: Place(to), log: log, queue: make(chan *Event, unsent),
		client: &http.Client{
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			// Don't follow redirects: the token is for this URL only, and net/http turns most redirected POSTs into
			// GETs.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	h.stopping, h.stop = context.WithCancel(context.Background())
	h.running.Go(func() {
		for e := range h.queue {
			h.deliver(e)
		}
	})
	return h
}

// send queues an event. It doesn't block.
func (h *Webhook) send(e *Event) {
	select {
	case h.queue <- e:
	default:
		h.dropped.Add(1)
	}
}

// deliver tries up to three times to send an event.
func (h *Webhook) deliver(e *Event) {
	body, err := json.Marshal(e)
	if err != nil {
		h.outcome(err)
		return
	}
	again, err := h.post(body)
	for wait := backoff; again && wait <= longestWait; wait *= 2 {
		select {
		case <-time.After(wait):
		case <-h.stopping.Done():
		}
		again, err = h.post(body)
	}
	h.outcome(err)
}

// post makes one attempt to send an event. again reports whether another attempt may succeed.
func (h *Webhook) post(body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(h.stopping, sending)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the URL can't be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	res, err := h.client.Do(req)
	if err != nil {
		var with *url.Error
		if errors.As(err, &with) {
			err = with.Err // leave out the URL, because it may contain a secret
		}
		return h.stopping.Err() == nil, err
	}
	_, _ = io.CopyN(io.Discard, res.Body, 4096) // read the body, so that the connection can be reused
	res.Body.Close()
	switch code := res.StatusCode; {
	case code >= 200 && code < 300:
		return false, nil
	case code >= 300 && code < 400:
		return false, fmt.Errorf("it redirects with HTTP status %d, which isn't followed: name the place itself", code)
	default:
		return code >= 500 || code == http.StatusRequestTimeout || code == http.StatusTooManyRequests, fmt.Errorf("it answers with HTTP status %d", code)
	}
}

// outcome counts an event as sent or failed. It logs when the webhook begins to fail, once a minute while it fails, and
// when it works again.
func (h *Webhook) outcome(err error) {
	switch {
	case err == nil:
		if h.sent.Add(1); h.lost > 0 {
			h.log.Info("budget webhook: it takes events again", "webhook", h.place, "lost", h.lost)
		}
		h.lost, h.told = 0, time.Time{}
		return
	case time.Since(h.told) >= tellEvery:
		h.told = time.Now()
		h.log.Warn("budget webhook: an event couldn't be sent", "webhook", h.place, "error", err)
	}
	h.lost++
	h.failed.Add(1)
}

// WebhookStats counts what a Webhook has done so far.
type WebhookStats struct {
	Sent    uint64
	Failed  uint64 // events that were accepted in none of the attempts
	Dropped uint64 // events that were dropped because the queue was full
}

// Stats returns the current counts.
func (h *Webhook) Stats() WebhookStats {
	return WebhookStats{h.sent.Load(), h.failed.Load(), h.dropped.Load()}
}

// close sends the queued events until ctx is done. send must not be called after that.
func (h *Webhook) close(ctx context.Context) {
	defer context.AfterFunc(ctx, h.stop)()
	close(h.queue)
	h.running.Wait()
	h.stop()
	h.client.CloseIdleConnections()
}
