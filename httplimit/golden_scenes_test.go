package httplimit_test

import (
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
)

// ask returns a step that sends a request some time after the previous one.
func ask(after time.Duration, headers ...string) step {
	s := step{after: after, request: "GET /v1/orders HTTP/1.1\nX-API-Key: sk_prod_1"}
	for _, h := range headers {
		s.request += "\n" + h
	}
	return s
}

// oddMoment is the start of the conversations. It isn't a whole number of any unit.
const oddMoment = 12*time.Second + 345_678_901

var (
	orders     = weir.Rule{ID: "orders", Limits: per(2, time.Minute)}
	three      = []step{ask(oddMoment), ask(0), ask(0)}
	refusedOne = weir.Rule{ID: "orders", Limits: []weir.Limit{{Count: 100, Window: time.Minute, Burst: 1}}}
	two        = []step{ask(oddMoment), ask(0)}
)

// allNames are custom header names.
var allNames = httplimit.HeaderNames{Limit: "x-quota", Remaining: "X-Quota-Left", Reset: "X-Quota-Reset", ResetAfter: "X-Quota-Wait"}

// algorithmScenes show every header of every dialect and both kinds of bodies for each algorithm: once with the default
// dialects, and once with all other dialects and a client that asks for problem details.
func algorithmScenes() []scene {
	var scenes []scene
	others := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.GitHub, httplimit.IETF06}, Names: allNames}}
	add := func(name string, rule weir.Rule, steps []step) {
		scenes = append(scenes, scene{name: "algorithm-" + name, rules: rules(rule), steps: steps})
		steps = slices.Clone(steps)
		for i := range steps {
			steps[i].request += "\nAccept: application/problem+json"
		}
		scenes = append(scenes, scene{name: "algorithm-" + name + "-others", rules: rules(rule), options: others, steps: steps})
	}
	for _, a := range []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingLog, weir.SlidingCounter} {
		rule := orders
		rule.Algorithm = a
		add(a.String(), rule, []step{ask(oddMoment), ask(3 * time.Second), ask(0), ask(7250 * time.Millisecond), ask(40 * time.Second), ask(time.Minute)})
	}
	waiting := ask(0)
	waiting.aside = true
	add("leaky_queue", weir.Rule{ID: "orders", Algorithm: weir.LeakyQueue, Limits: per(2, time.Minute)},
		[]step{ask(oddMoment), waiting, ask(5 * time.Second), ask(5 * time.Second)})
	return scenes
}

func dialectScenes() []scene {
	dialects := func(ds ...httplimit.Dialect) httplimit.Options {
		return httplimit.Options{Answers: httplimit.Answers{Dialects: ds}}
	}
	with := func(o httplimit.Options, change func(*httplimit.Answers)) httplimit.Options {
		change(&o.Answers)
		return o
	}
	none := dialects([]httplimit.Dialect{}...)
	none.Answers.Dialects = []httplimit.Dialect{}
	expose := func(a *httplimit.Answers) { a.Expose = true }
	several := rules(
		weir.Rule{ID: "org", By: []string{"org"}, Limits: per(1000, time.Hour)},
		weir.Rule{ID: "anonymous", By: []string{"ip"}, Limits: []weir.Limit{{Count: 2, Window: time.Second}, {Count: 5000, Window: time.Hour}}},
		weir.Rule{ID: "trial", Shadow: true, Limits: per(1, time.Hour)},
		weir.Rule{ID: "costly", Cost: 5, Limits: []weir.Limit{{Count: 40, Window: time.Minute, Burst: 100}}, Candidate: per(5, time.Minute)},
	)
	return []scene{
		{name: "dialect-default", rules: rules(orders), steps: three},
		{name: "dialect-x-ratelimit", rules: rules(orders), options: dialects(httplimit.XRateLimit), steps: three},
		{name: "dialect-ietf", rules: rules(orders), options: dialects(httplimit.IETF), steps: three},
		{name: "dialect-ietf-06", rules: rules(orders), options: dialects(httplimit.IETF06), steps: three},
		{name: "dialect-github", rules: rules(orders), options: dialects(httplimit.GitHub), steps: three},
		{name: "dialect-github-burst", rules: rules(weir.Rule{ID: "orders", Limits: []weir.Limit{{Count: 1000, Window: time.Minute, Burst: 200}}}), options: dialects(httplimit.GitHub), steps: two},
		{name: "dialect-github-ietf-06", rules: rules(orders), options: with(dialects(httplimit.GitHub, httplimit.IETF06), func(a *httplimit.Answers) { a.Names, a.Expose = allNames, true }), steps: two},
		{name: "dialect-none", rules: rules(orders), options: none, steps: three},
		{name: "dialect-own-names", rules: rules(orders), options: with(none, func(a *httplimit.Answers) { a.Names = allNames }), steps: three},
		{name: "dialect-own-name", rules: rules(orders), options: with(none, func(a *httplimit.Answers) { a.Names.Remaining = "X-Left" }), steps: two},
		{name: "dialect-expose", rules: rules(orders), options: with(dialects(httplimit.XRateLimit, httplimit.IETF), expose), steps: three},
		{name: "dialect-none-expose", rules: rules(orders), options: with(none, expose), steps: three},
		{name: "several-limits", rules: several, steps: append(append([]step{}, three...), ask(time.Second))},
		{name: "no-limit", rules: rules(weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "/other"}, Limits: per(1, time.Hour)}), steps: two},
		{name: "bypassed", rules: weir.Rules{Rules: []weir.Rule{orders}, Allow: []string{"sk_prod_*"}}, steps: two,
			options: httplimit.Options{Identity: httplimit.Identity{TrustUnverified: true}}},
		{name: "refill-rate", rules: rules(weir.Rule{ID: "orders", Limits: []weir.Limit{{Count: 100, Window: time.Minute, Burst: 2, Refill: 1.67}}}), steps: three},
	}
}

func refusalScenes() []scene {
	cost := func(n int64) httplimit.Options {
		return httplimit.Options{Identify: func(_ *http.Request, req *weir.Request) { req.Cost = n }}
	}
	replaced := func(r httplimit.Template) httplimit.Options {
		return httplimit.Options{Answers: httplimit.Answers{Refusal: r}}
	}
	head := step{request: "HEAD /v1/orders HTTP/1.1\nX-API-Key: sk_prod_1"}
	const problem = "Accept: application/problem+json"
	problems := []step{ask(oddMoment, problem), ask(0, problem)}
	denied := weir.Rules{Rules: []weir.Rule{orders}, Deny: []string{"sk_prod_1"}}
	required := rules(weir.Rule{ID: "orders", By: []string{"user"}, Missing: weir.MissingRefuse, Limits: per(2, time.Minute)})
	abused := orders
	abused.Abuse = &counter.Abuse{Refusals: 1, Window: time.Minute, Cooldown: time.Minute, Grow: 1, Most: time.Minute}
	kept := append(append([]step{}, three...), ask(time.Second), ask(time.Second), ask(time.Second), ask(time.Second), ask(time.Second, problem))
	search := weir.Rule{ID: "search", Match: weir.Match{Endpoint: "GET /v1/{what}"}, Limits: per(1, time.Minute)}
	text := "{{.Status}} {{.Code}}: {{.Message}}. Rule {{.Rule}}, limit {{.Limit}} in {{.WindowSeconds}} s, again in {{.RetryAfterSeconds}} s, whole at {{.ResetAt}}."
	return []scene{
		{name: "never-fits", rules: rules(orders), options: cost(3), steps: two},
		{name: "never-fits-problem", rules: rules(orders), options: cost(3), steps: problems},
		{name: "denied", rules: denied, steps: two},
		{name: "denied-problem", rules: denied, steps: problems},
		{name: "identity-required", rules: required, steps: two},
		{name: "identity-required-problem", rules: required, steps: problems},
		{name: "cooldown", rules: rules(abused), steps: kept},
		{name: "head", rules: rules(refusedOne), steps: []step{ask(oddMoment), head}},
		{name: "problem", rules: rules(refusedOne, weir.Rule{ID: "all", By: []string{}, Limits: per(1, time.Hour)}), steps: problems},
		{name: "problem-among-others", rules: rules(refusedOne), steps: []step{
			ask(oddMoment), ask(0, "Accept: text/html", "Accept: application/json;q=0.5, Application/Problem+JSON; q=0.9"),
			ask(0, "Accept: application/problem+json;q=0, */*"), ask(0, "Accept: application/problem+json-not"),
		}},
		{name: "endpoint", rules: rules(search), steps: append(append([]step{}, two...), ask(0, problem))},
		{name: "shared-counter", rules: rules(weir.Rule{ID: "orders", By: []string{"ip"}, Limits: per(1, time.Minute)}), steps: two},
		{name: "window-below-a-second", rules: rules(weir.Rule{ID: "orders", Algorithm: weir.FixedWindow, Limits: per(1, 250*time.Millisecond)}), steps: two},
		{name: "window-of-a-day", rules: rules(weir.Rule{ID: "orders", Algorithm: weir.FixedWindow, Limits: per(1, 24*time.Hour)}), steps: two},
		{name: "template", rules: rules(refusedOne), options: replaced(httplimit.Template{Body: text}), steps: append(append([]step{}, two...), head)},
		{name: "template-status", rules: rules(refusedOne), options: replaced(httplimit.Template{Status: 503}), steps: append(append([]step{}, two...), ask(0, problem))},
		{name: "template-type", rules: rules(refusedOne), options: replaced(httplimit.Template{ContentType: "application/vnd.example+json"}), steps: two},
		{name: "template-all", rules: rules(refusedOne), options: replaced(httplimit.Template{Status: 420, ContentType: "text/html; charset=utf-8", Body: "<p>{{.Message}}</p>"}), steps: append(append([]step{}, two...), ask(0, problem))},
		{name: "template-that-fails", rules: rules(refusedOne), options: replaced(httplimit.Template{Body: "{{if .Limit}}{{index .Rule 1000}}{{end}}"}), steps: two},
		{name: "template-denied", rules: denied, options: replaced(httplimit.Template{Status: 503, Body: "no"}), steps: two},
	}
}

func degradedScenes() []scene {
	closed := weir.Rule{ID: "orders", OnStoreFailure: weir.FailRefuse, Limits: per(2, time.Minute)}
	local := weir.Rule{ID: "orders", OnStoreFailure: weir.FailLocal, Limits: per(1, time.Minute)}
	emergency, err := counter.NewPolicy("emergency", weir.PerSecond(1))
	if err != nil {
		panic(err)
	}
	everything := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.GitHub, httplimit.IETF06}, Names: allNames}}
	other := weir.Rule{ID: "other", Limits: per(10, time.Minute)}
	down := []string{"orders"}
	own := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{}, Names: httplimit.HeaderNames{Limit: "X-Quota", Remaining: "X-Left"}}}
	silent := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{}}}
	ietf := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.IETF}, Expose: true}}
	return []scene{
		{name: "degraded", rules: rules(orders), fails: down, steps: two},
		{name: "degraded-ietf", rules: rules(orders), fails: down, options: ietf, steps: two},
		{name: "degraded-own-names", rules: rules(orders), fails: down, options: own, steps: two},
		{name: "degraded-none", rules: rules(orders), fails: down, options: silent, steps: two},
		{name: "degraded-beside-a-healthy-limit", rules: rules(orders, other), fails: down, steps: two},
		{name: "degraded-local", rules: rules(local), fails: down, steps: two},
		{name: "degraded-local-others", rules: rules(local), fails: down, options: everything, steps: two},
		{name: "degraded-local-none", rules: rules(local), fails: down, options: silent, steps: two},
		{name: "degraded-emergency", rules: rules(orders), fails: down, emergency: emergency, steps: two},
		{name: "fail-closed", rules: rules(closed), fails: down, steps: two},
		{name: "fail-closed-problem", rules: rules(closed), fails: down, steps: []step{ask(oddMoment, "Accept: application/problem+json")}},
		{name: "fail-closed-beside-a-healthy-limit", rules: rules(closed, other), fails: down, steps: two},
		{name: "fail-closed-none", rules: rules(closed), fails: down, options: silent, steps: two},
	}
}

// amountScenes show limits on amounts, limits in calendar windows, and limits on requests in flight.
func amountScenes() []scene {
	taking := func(amounts map[string]counter.Amount, more ...httplimit.Dialect) httplimit.Options {
		o := httplimit.Options{Identify: func(_ *http.Request, req *weir.Request) { req.Amounts = amounts }}
		if len(more) > 0 {
			o.Answers.Dialects = more
		}
		return o
	}
	expose := func(o httplimit.Options) httplimit.Options {
		o.Answers.Expose = true
		return o
	}
	tokens := weir.Rule{ID: "tokens", Amount: "tokens", Limits: per(200_000, time.Minute)}
	daily := weir.Rule{ID: "daily", Amount: "tokens", Limits: per(150_000, 24*time.Hour), Algorithm: weir.FixedWindow}
	spend := weir.Rule{
		ID: "spend", Amount: "usd", Algorithm: weir.FixedWindow, Calendar: counter.Calendar{Zone: "Europe/Berlin", Day: 15},
		Limits: []weir.Limit{{Count: 0, Fraction: 500_000, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}},
	}
	output := weir.Rule{ID: "output", Amount: "output_tokens", Limits: per(1000, time.Minute)}
	shadow := weir.Rule{ID: "trial", Amount: "tokens", Shadow: true, Limits: per(1, time.Minute)}
	thousands := func(n int64) map[string]counter.Amount {
		return map[string]counter.Amount{"tokens": counter.Whole(n * 1000), "usd": 200_000, "output_tokens": counter.Whole(17)}
	}
	const problem = "Accept: application/problem+json"
	asks := []step{ask(oddMoment), ask(0), ask(0, problem)}
	slot := slots(2)
	silent := httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.Tokens}}}
	return []scene{
		{name: "amount", rules: rules(tokens), options: taking(thousands(120)), steps: asks},
		{name: "amount-never-fits", rules: rules(tokens), options: taking(thousands(201)), steps: asks[:1]},
		{name: "amount-never-fits-month", rules: rules(spend), options: taking(map[string]counter.Amount{"usd": 500_001}), steps: asks[:1]},
		{name: "amount-calendar", rules: rules(spend), options: taking(thousands(1)), steps: asks},
		{name: "amount-template", rules: rules(spend), options: httplimit.Options{
			Identify: taking(thousands(1)).Identify,
			Answers:  httplimit.Answers{Refusal: httplimit.Template{Body: "{{.Message}}: {{.Amount}} {{.Limit}} {{.WindowSeconds}} {{.RetryIsAGuess}}"}},
		}, steps: asks},
		{name: "dialect-tokens", rules: rules(orders, tokens, daily, spend, output, shadow, slot), options: taking(thousands(120), httplimit.Tokens), steps: asks},
		{name: "dialect-tokens-expose", rules: rules(orders, tokens), options: expose(taking(thousands(1), httplimit.XRateLimit, httplimit.Tokens)), steps: asks},
		{name: "dialect-tokens-requests", rules: rules(orders), options: silent, steps: asks},
		{name: "dialect-tokens-nothing", rules: rules(slot), options: silent, steps: asks[:1]},
		{name: "dialect-tokens-degraded", rules: rules(orders, tokens), fails: []string{"tokens"}, options: taking(thousands(1), httplimit.Tokens), steps: asks[:1]},
		{name: "dialect-tokens-all-degraded", rules: rules(tokens), fails: []string{"tokens"}, options: taking(thousands(1), httplimit.Tokens), steps: asks[:1]},
		{name: "slots", rules: rules(slot), inFlight: 1, steps: asks[:1]},
		{name: "slots-taken", rules: rules(slot), inFlight: 2, steps: asks},
		{name: "slots-beside-others", rules: rules(orders, slot), steps: asks},
		{name: "slots-never-fit", rules: rules(slot), options: httplimit.Options{Identify: func(_ *http.Request, req *weir.Request) { req.Cost = 3 }}, steps: asks[:1]},
		{name: "slots-others", rules: rules(slot), inFlight: 2, options: httplimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{httplimit.GitHub, httplimit.IETF06}, Names: allNames}}, steps: asks[:1]},
	}
}
